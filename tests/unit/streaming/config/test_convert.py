"""streaming.config.convert: how a value may be written, and what people are told about any other one."""

from pathlib import Path

import pytest

from sinks.bridge.settings import BridgeSettings
from state.settings import BackoffSettings, SessionSettings
from streaming.config.keys import Partial
from streaming.config.settings import InvalidSettings, Settings


def problems(**tables: object) -> list[tuple[str, str]]:
    with pytest.raises(InvalidSettings) as caught:
        Settings(**tables)
    return [(".".join(map(str, path)), text.partition(";")[0].partition(" (")[0]) for path, text in caught.value.problems]


@pytest.mark.parametrize("written", [5, "5", "5.0", 5.0])
def test_a_whole_number_may_be_written_so(written: object) -> None:
    assert Settings(session={"max_inflight": written}).session.max_inflight == 5


@pytest.mark.parametrize("written", [True, 1, "true", "True", "1"])
def test_true_may_be_written_so(written: object) -> None:
    assert Settings(session={"mqueue_store_qos0": written}).session.mqueue_store_qos0 is True


@pytest.mark.parametrize(
    ("table", "key", "written", "text"),
    [
        ("session", "max_inflight", "x", "is 'x': expected `int`, got `str`"),
        ("session", "max_inflight", 1.5, "is 1.5: expected `int`, got `float`"),
        ("session", "max_inflight", True, "is True: expected `int`, got `bool`"),
        ("session", "max_inflight", -1, "is -1: input should be greater than or equal to 0"),
        ("session", "high_watermark", 2, "is 2: input should be less than or equal to 1"),
        ("session", "high_watermark", "x", "is 'x': expected `float`, got `str`"),
        ("session", "mqueue_store_qos0", "perhaps", "is 'perhaps': expected `bool`, got `str`"),
        ("session", "retry_mqtt5", "x", "is 'x': input should be one of reconnect, timer, wait"),
        ("routing", "shared_strategy", "x", "is 'x': input should be one of sticky, round_robin"),
        ("engine", "tables_location", 3, "is 3: expected `str`, got `int`"),
        ("engine", "data_dir", 3, "is 3: expected `str`, got `int`"),
        ("engine", "spark", 3, "is 3: input should be a valid dictionary"),
        ("console", "names", 3, "is 3: input should be a valid tuple"),
        ("console", "host", "", "is '': string should have at least 1 character"),
        ("bridge", "mqtt_version", ["5"], 'this is no version: "5" and "3.1.1" are possible'),
    ],
)
def test_any_other_value_is_refused_with_what_it_should_be(table: str, key: str, written: object, text: str) -> None:
    assert problems(**{table: {key: written}}) == [(f"{table}.{key}", text)]


def test_every_wrong_element_of_a_list_is_named() -> None:
    assert problems(console={"names": ["a", 1, 2]}, engine={"spark": {"a": [], "b": None}}, rules=[{"users": []}]) == [
        ("engine.spark.a", "input should be a valid string"),
        ("engine.spark.b", "is None: input should be a valid string"),
        ("console.names.1", "is 1: expected `str`, got `int`"),
        ("console.names.2", "is 2: expected `str`, got `int`"),
        ("rules.0.users", "tuple should have at least 1 item after validation, not 0"),
    ]


def test_what_should_be_a_table_is_not_shown_if_it_is_a_list() -> None:
    assert problems(kafka=["hunter2"], session=3, listeners=3, policies=["x"]) == [
        ("kafka", "write a table"),
        ("session", "is 3: write a table"),
        ("policies.0", "is 'x': write a table"),
        ("listeners", "is 3: input should be a valid tuple"),
    ]


def test_settings_may_be_given_as_instances() -> None:
    settings = Settings(bridge=BridgeSettings(host="h"), session={"backoff": BackoffSettings(initial_ms=2)})
    assert (settings.bridge.host, settings.session.backoff.initial_ms) == ("h", 2)
    assert Settings(profiles=settings.profiles) == Settings()
    assert settings != Settings()


def test_a_profile_keeps_what_was_written() -> None:
    (profile,) = Settings(profiles=[{"clients": "a", "retry_interval": ["1s", "2s"], "backoff": {"max": "9s"}}]).profiles
    assert profile.values.keys() == {"clients", "retry_interval_ms", "later_retry_intervals_ms", "backoff"}
    over = profile.over(SessionSettings(max_inflight=7, backoff=BackoffSettings(initial_ms=5)))
    assert (over.max_inflight, over.backoff) == (7, BackoffSettings(initial_ms=5, max_ms=9_000))
    again = Partial(profile.settings_class, dict(profile.values))
    assert (again == profile, hash(again) == hash(profile), profile == 3) == (True, True, False)


def test_another_table_of_checked_settings_is_not_checked_again(tmp_path: Path) -> None:
    settings = Settings(engine={"data_dir": str(tmp_path)})
    changed = settings.with_tables(session=SessionSettings(max_inflight=3))
    assert (changed.session.max_inflight, changed.engine.data_dir) == (3, tmp_path)
    assert settings.session == SessionSettings()
