"""The configuration: layers, units, and what people are told about mistakes."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from sinks.bridge.settings import BridgeSettings
from sinks.kafka.security.client_settings import KafkaSettings
from sinks.mqtt.settings import AccessRule, DeviceLimits, GatewaySettings, ListenerSettings, LoginSettings
from sinks.routing.settings import FastPathSettings, RoutingSettings
from state.dead_letters.exchanges import Exchange
from state.dead_letters.policy import Permission, Policy
from state.setting import SETTING, Process
from state.settings import BackoffSettings, RecordLimits, RetryMqtt5, SessionSettings
from streaming.config.errors import ConfigurationError
from streaming.config.explain import known_keys, render_toml
from streaming.config.removed import REMOVED
from streaming.config.resources import conf_file
from streaming.config.section import section_of, setting_of
from streaming.config.settings import Settings, gateway_settings, load_settings, routing_settings
from streaming.engine.lifecycle.settings_log import pipeline_settings
from streaming.engine.operator.pipeline import SettingsOfClients
from streaming.settings import EngineSettings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "my.toml"


def session_settings_of(settings: Settings, client_id: str) -> SessionSettings:
    """Returns the settings that the engine uses."""
    return SettingsOfClients(pipeline_settings(settings, commands_partitions=1)).of(client_id)


def complaints(*overrides: str, config: Path | None = None) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(config, overrides)
    return [str(problem) for problem in caught.value.problems]


def test_the_file_in_conf_has_exactly_the_defaults_of_the_code() -> None:
    assert load_settings() == Settings()


@pytest.mark.parametrize("text", ["", " \n", "# nothing else"])
def test_a_file_without_a_key_is_refused(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    assert complaints(config=file) == [f"{file}: has no key; write one, or leave --config out for the defaults"]


def test_the_file_in_conf_explains_every_key() -> None:
    text = conf_file("inflight.toml").read_text(encoding="utf-8")
    assert render_toml(Settings()) in text
    for key in known_keys(Settings):
        if key not in ("profiles", "exchanges", "policies", "permissions", "listeners", "rules"):
            assert f"\n{key.rpartition('.')[2]} = " in text


def test_the_defaults_are_those_of_the_session_and_of_the_gateway() -> None:
    assert Settings().session == SessionSettings()
    ours = dataclasses.asdict(gateway_settings(Settings()))
    theirs = dataclasses.asdict(GatewaySettings())
    different = {key for key in theirs if ours[key] != theirs[key]}
    assert different == {"kafka_options", "routing", "session"}, "Kafka's security is spelt out; a gateway alone does not route"


@pytest.mark.parametrize("process", ["engine", "gateway"])
def test_the_file_in_conf_lists_what_a_running_process_reloads(process: Process) -> None:
    head = conf_file("inflight.toml").read_text(encoding="utf-8").replace("\n# ", " ").partition("Durations:")[0]
    engines, gateways = head.partition("an engine takes")[2].split("a gateway:")
    told = re.findall(r"\[+([a-z._]+)\]|(engine\.[a-z]+)", engines if process == "engine" else gateways)
    taken = {name for name, field in Settings.model_fields.items() if process in setting_of(field).reloaded_by}
    for name, section in (("engine", EngineSettings), ("gateway", GatewaySettings)):
        settings = ((field.name, field.metadata.get(SETTING)) for field in dataclasses.fields(section))
        taken |= {f"{name}.{key}" for key, setting in settings if setting and process in setting.reloaded_by}
    assert {table or key for table, key in told} == taken


FROM_ELSEWHERE = {"bootstrap_servers", "kafka_options", "events_topic", "commands_topic", "uplink_topic", "leases_topic"}


@pytest.mark.parametrize(
    ("settings_class", "others"),
    [
        (
            GatewaySettings,
            {"device_limits", "fast_path", "routing", "limits", "session", "profiles", "listeners", "rules", "shares_ports"}
            | {"accept_timeout_ms", "topic_alias_maximum"}
            | FROM_ELSEWHERE,
        ),
        (LoginSettings, {"max_waiting", "failure_wait_ms", "max_failure_wait_ms"}),
        (ListenerSettings, set()),
        (DeviceLimits, set()),
        (AccessRule, set()),
        (
            FastPathSettings,
            {"messages_topic", "routes_topic", "max_lag", "pressure_loop_lag_ms", "pressure_unconfirmed", "pressure_offers"}
            | {"pressure_hold_ms", "wake_ups_topic", "max_held_bytes", "max_lag_of_few"},
        ),
        (
            RoutingSettings,
            {"uplink_topic", "publications_topic", "subscriptions_topic", "retained_topic", "messages_topic", "throttle_topic"},
        ),
        (BridgeSettings, {"receive_maximum"} | FROM_ELSEWHERE),
        (
            SessionSettings,
            {"later_retry_intervals_ms", "max_record_bytes", "max_client_id_bytes", "fast_path", "policy", "exchanges"}
            | {"routing", "routed_receipts", "messages_generation", "leads_from"},
        ),
        (BackoffSettings, {"multiplier", "jitter"}),
        (RecordLimits, {"max_headers_bytes", "max_client_id_bytes", "dead_letter_topic_bytes"}),
        (KafkaSettings, set()),
        (Policy, {"owner_writes"}),
        (Exchange, set()),
        (Permission, set()),
    ],
)
def test_every_field_is_a_key_but_those_that_are_known(settings_class: Any, others: set[str]) -> None:
    keys = {field.name for field in section_of(settings_class).field_of.values()}
    assert {field.name for field in dataclasses.fields(settings_class)} - keys == others


def test_every_gateway_setting_can_be_configured() -> None:
    configured = gateway_settings(
        Settings(
            gateway={"group_instance_id": "gw-1", "anonymous": True, "login": {"password_file": "users"}},
            listeners=({"port": 1884, "anonymous": True},),
            rules=({"users": ("ann",), "publish": ("a/#",)},),
            topics={"prefix": "t"},
            kafka={"bootstrap_servers": "k:1"},
        )
    )
    assert (configured.group_instance_id, configured.anonymous, configured.login.password_file) == ("gw-1", True, "users")
    assert configured.listeners == (ListenerSettings(port=1884, anonymous=True),)
    assert configured.rules == (AccessRule(users=("ann",), publish=("a/#",)),)
    assert (configured.events_topic, configured.commands_topic, configured.uplink_topic) == ("t.events", "t.commands", "t.uplink")
    assert configured.bootstrap_servers == "k:1"


def test_a_matcher_and_the_engine_have_the_topics_of_the_prefix() -> None:
    settings = Settings(routing={"enabled": True, "group_id": "g"}, topics={"prefix": "t"})
    routing = routing_settings(settings)
    topics = (routing.uplink_topic, routing.publications_topic, routing.subscriptions_topic, routing.retained_topic)
    assert topics == ("t.uplink", "t.publications", "t.subscriptions", "t.retained")
    assert (routing.messages_topic, routing.group_id, routing.enabled) == ("t.messages", "g", True)
    engine = pipeline_settings(settings, commands_partitions=1)
    assert (engine.routing, engine.session.routing, engine.topics.subscriptions) == (True, True, "t.subscriptions")
    assert gateway_settings(settings).routing == routing


def test_gateway_and_engine_share_limits_sessions_and_fast_path_settings() -> None:
    settings = Settings(
        fast_path={"enabled": False, "max_payload_bytes": "1KiB"},
        topics={"prefix": "t"},
        engine={"max_payload_bytes": "2KiB"},
        session={"max_awaiting_rel": 7},
        profiles=[{"clients": "a*", "max_awaiting_rel": 8}],
    )
    gateway = gateway_settings(settings)
    fast_path = gateway.fast_path
    assert (fast_path.enabled, fast_path.max_payload_bytes) == (False, 1_024)
    assert (fast_path.messages_topic, fast_path.routes_topic) == ("t.messages", "t.routes")
    assert fast_path.wake_ups_topic == "t.wake-ups"
    assert gateway.limits == settings.record_limits
    assert (gateway.session_of("a").max_awaiting_rel, gateway.session_of("b").max_awaiting_rel) == (8, 7)
    engine = pipeline_settings(settings, commands_partitions=1)
    assert (engine.limits, engine.session, engine.topics.routes) == (gateway.limits, gateway.session, "t.routes")
    assert [engine.session.fast_path, engine.profiles[0].session.fast_path] == [False, False]


def test_what_is_shown_reads_back_as_the_same(file: Path) -> None:
    settings = load_settings(
        overrides=[
            "retry_interval=1500ms",
            "backoff.max=5m",
            'kafka.options={"request.timeout.ms": 5000}',
            "session.session_expiry_interval=never",
            'profiles=[{"clients": "a*", "max_inflight": 1, "backoff": {"initial": "2s"}}]',
        ]
    )
    file.write_text(render_toml(settings), encoding="utf-8")
    assert load_settings(file) == settings


def test_flags_win_over_the_environment_and_that_over_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("[session]\nmax_inflight = 1\nprefetch = 1\nmax_awaiting_rel = 1\n")
    monkeypatch.setenv("INFLIGHT__SESSION__PREFETCH", "2")
    monkeypatch.setenv("INFLIGHT__SESSION__MAX_AWAITING_REL", "2")
    session = load_settings(file, ["session.max_awaiting_rel=3"]).session
    assert (session.max_inflight, session.prefetch, session.max_awaiting_rel) == (1, 2, 3)


def test_a_file_above_wins_over_flags_and_says_where_it_is_wrong(file: Path, tmp_path: Path) -> None:
    file.write_text("[session]\nmax_inflight = 4\n")
    above = tmp_path / "above.toml"
    above.write_text("[session]\n\nmax_mqueue_len = 6\n")
    session = load_settings(file, ["max_mqueue_len=5"], above=above).session
    assert (session.max_inflight, session.max_mqueue_len) == (4, 6)
    above.write_text("[session]\n\nmax_mqueue_len = -1\n")
    with pytest.raises(ConfigurationError) as raised:
        load_settings(file, above=above)
    assert [problem.where for problem in raised.value.problems] == [f"{above}:3"]


def test_a_key_of_a_session_needs_no_section_on_the_command_line() -> None:
    session = load_settings(overrides=["retry_interval=2s", "max_inflight=2", "retry_mqtt5=timer", "backoff.initial=5ms"]).session
    assert session == SessionSettings(
        retry_interval_ms=2_000, max_inflight=2, retry_mqtt5=RetryMqtt5.TIMER, backoff=BackoffSettings(initial_ms=5)
    )


def test_the_last_flag_wins() -> None:
    assert load_settings(overrides=["prefetch=1", "session.prefetch=2"]).session.prefetch == 2


def test_nested_keys_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT__SESSION__BACKOFF__MAX", "3m")
    monkeypatch.setenv("INFLIGHT__PROFILES", '[{"clients": "x", "prefetch": 3}]')
    settings = load_settings()
    assert settings.session.backoff.max_ms == 180_000
    assert session_settings_of(settings, "x").prefetch == 3


def test_a_table_that_is_written_in_part_keeps_its_other_defaults() -> None:
    bridge = load_settings(overrides=["bridge.backoff.initial=2s"]).bridge
    assert bridge.backoff == BackoffSettings(initial_ms=2_000, max_ms=BridgeSettings().backoff.max_ms)


def test_a_text_may_begin_like_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT__BRIDGE__PASSWORD", "{hunter2")
    settings = load_settings(overrides=["bridge.topic_template={client_id}/{topic}"])
    assert (settings.bridge.password, settings.bridge.topic_template) == ("{hunter2", "{client_id}/{topic}")


def test_a_profile_changes_only_what_it_names_and_the_first_match_holds(file: Path) -> None:
    file.write_text(
        """
        [session]
        prefetch = 7
        backoff.initial = "3s"
        [[profiles]]
        clients = "internal-*"
        max_inflight = 128
        backoff = { max = "200s" }
        [[profiles]]
        clients = "*"
        max_inflight = 4
        """
    )
    settings = load_settings(file)
    assert [pattern for pattern, _ in settings.session_profiles] == ["internal-*", "*"]
    internal = session_settings_of(settings, "internal-9")
    assert (internal.max_inflight, internal.prefetch) == (128, 7)
    assert (internal.backoff.initial_ms, internal.backoff.max_ms) == (3_000, 200_000)
    assert session_settings_of(settings, "other").max_inflight == 4


def test_a_wrong_key_is_named_with_its_line_and_the_nearest_one(file: Path) -> None:
    file.write_text("[session]\nprefetch = 1\nmax_inflihgt = 3\n")
    assert complaints(config=file) == [
        f"{file}:3: session.max_inflihgt: there is no such key; did you mean session.max_inflight?"
    ]


def test_a_wrong_flag_and_a_wrong_variable_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT__SESION__PREFETCH", "1")
    assert complaints("retry_intervall=2s") == [
        "environment INFLIGHT__SESION__PREFETCH: sesion.prefetch: there is no such key; did you mean session.prefetch?",
        "--set retry_intervall=2s: retry_intervall: there is no such key; did you mean session.retry_interval?",
    ]


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("[gateway]\nfetch_max_wait_ms = 5", ":2: gateway.fetch_max_wait_ms: removed: it is 250ms"),
        ("[topics.partitions]\nroutes = 8", ":2: topics.partitions.routes: removed: it has as many as topics.partitions.m"),
        ("[session.backoff]\njitter = 0.1", ":2: session.backoff.jitter: removed: it is 0.2"),
        ('[[profiles]]\nclients = "a"\nbackoff = { jitter = 0.1 }', ":3: profiles[0].backoff.jitter: removed: it is 0.2"),
    ],
)
def test_a_removed_key_is_named_with_what_replaces_it(written: str, problem: str, file: Path) -> None:
    file.write_text(written)
    [found] = complaints(config=file)
    assert found.startswith(f"{file}{problem}")


def test_a_removed_key_is_refused_as_flag_and_variable_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT__FAST_PATH__MAX_LAG", "5")
    assert complaints("backoff.multiplier=2") == [
        "environment INFLIGHT__FAST_PATH__MAX_LAG: fast_path.max_lag: removed: it is 1000",
        "--set backoff.multiplier=2: backoff.multiplier: removed: it is 1.6; backoff.initial and backoff.max bound the waits",
    ]


def test_no_removed_key_exists() -> None:
    assert not REMOVED.keys() & set(known_keys(Settings))


def test_a_wrong_value_is_reported_with_what_is_allowed_and_its_meaning(file: Path) -> None:
    file.write_text("[session]\nmax_inflight = 70000\n")
    [problem] = complaints(config=file)
    assert problem.startswith(f"{file}:2: session.max_inflight: is 70000: ")
    assert "allowed: 0 … 65535" in problem
    assert "unacknowledged at once" in problem


@pytest.mark.parametrize("written", ['["30s", "1m", "5m"]', "[30000, 60000, 300000]", '["30s", 60000, "300s"]'])
def test_a_retry_interval_may_be_a_schedule(written: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = SessionSettings(retry_interval_ms=30_000, later_retry_intervals_ms=(60_000, 300_000))
    file.write_text(f"[session]\nretry_interval = {written}\n")
    assert load_settings(file).session == expected
    assert load_settings(overrides=[f"retry_interval={written}"]).session == expected
    monkeypatch.setenv("INFLIGHT__SESSION__RETRY_INTERVAL", written)
    from_environment = load_settings()
    assert from_environment.session == expected
    file.write_text(render_toml(from_environment))
    assert 'retry_interval = ["30s", "1m", "5m"]' in file.read_text()
    monkeypatch.delenv("INFLIGHT__SESSION__RETRY_INTERVAL")
    assert load_settings(file) == from_environment


@pytest.mark.parametrize(("written", "milliseconds"), [("10s", 10_000), ("1500", 1_500), ('["2s"]', 2_000)])
def test_one_duration_is_one_duration_wherever_it_is_written(
    written: str, milliseconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFLIGHT__SESSION__RETRY_INTERVAL", written)
    expected = SessionSettings(retry_interval_ms=milliseconds)
    assert load_settings().session == expected
    monkeypatch.delenv("INFLIGHT__SESSION__RETRY_INTERVAL")
    assert load_settings(overrides=[f"retry_interval={written}"]).session == expected


def test_a_profile_may_have_a_schedule_of_its_own() -> None:
    settings = load_settings(overrides=['profiles=[{"clients": "far-*", "retry_interval": ["1m", "1h"]}]'])
    far = session_settings_of(settings, "far-1")
    assert (far.retry_interval_ms, far.later_retry_intervals_ms) == (60_000, (3_600_000,))
    assert session_settings_of(settings, "near").later_retry_intervals_ms == ()


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ('["30s", "1ms"]', "1ms is out of range; allowed: 100ms … 1d"),
        ('["30s", "25h"]', "25h is out of range"),
        ('["1m", "30s"]', "30s comes after 1m and is shorter: a schedule does not shrink"),
        ('["30s", "soon"]', "'soon' is not a duration: write for example 30s"),
        ('["30s", ["1m"]]', "['1m'] is not a duration"),
        ("[]", "a schedule has 1…100 durations, not 0"),
        (str([1_000] * 101), "a schedule has 1…100 durations, not 101"),
        ('{"first": "30s"}', "not a duration"),
    ],
)
def test_a_wrong_schedule_is_refused_before_anything_starts(schedule: str, words: str) -> None:
    [problem] = complaints(f"retry_interval={schedule}")
    assert f"--set retry_interval={schedule}: session.retry_interval: " in problem
    assert words in problem


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("retry_interval=1ms", "allowed: 100ms … 1d"),
        ("retry_interval=soon", "write for example 30s"),
        ("max_mqueue_bytes=1Mx", "write for example 256KiB"),
        ("retry_mqtt5=never", "allowed: reconnect, timer, wait"),
        ("mqueue_store_qos0=perhaps", "allowed: true, false"),
        ("session_expiry_interval=1500ms", "not a whole number of seconds"),
        ("gateway.port=70000", "allowed: -1 … 65535"),
        ("topics.prefix=a/b", "letters, digits"),
        ("kafka.bootstrap_servers=localhost", "write host:port"),
        ("kafka.security_protocol=TLS", "allowed: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("engine.state_partitions=0", "allowed: 1 … 10000"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(override: str, allowed: str) -> None:
    [problem] = complaints(override)
    assert problem.startswith(f"--set {override}: ")
    assert allowed in problem


def test_all_mistakes_are_reported_at_once(file: Path) -> None:
    file.write_text("[session]\nmax_inflight = -1\n[gateway]\nprot = 1\n[nonsense]\na = 1\n[[profiles]]\nprefetch = -1\n")
    found = complaints("delivery_limit=x", config=file)
    keys = {problem.removeprefix(str(file)).split(": ")[1] for problem in found}
    assert keys == {
        "session.max_inflight",
        "session.delivery_limit",
        "gateway.prot",
        "nonsense",
        "profiles[0].prefetch",
        "profiles[0].clients",
    }


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (["backoff.max=10ms"], "session.backoff.max", "less than backoff.initial = 1s"),
        (["max_mqueue_bytes=1KiB"], "session.max_mqueue_bytes", "would never fit in the queue"),
        (
            ["engine.max_record_bytes=300KiB", "gateway.max_packet_size_bytes=64KiB", "max_subscription_bytes=64KiB"],
            "engine.max_record_bytes",
            "max_payload_bytes",
        ),
        (
            ["topics.replication_factor=1", "topics.min_insync_replicas=2"],
            "topics.min_insync_replicas",
            "is 2, more than replication_factor = 1: Kafka would confirm nothing",
        ),
        (
            ["max_dead_letters=9", 'policies=[{"name": "p", "dead_letter_limit": 10}]'],
            "session.max_dead_letters",
            "so no message reaches dead_letter_limit = 10 of the policy 'p'",
        ),
        (["gateway.max_packet_size_bytes=1MiB"], "gateway.max_packet_size_bytes", "does not fit in a record"),
        (["gateway.processes=9"], "gateway.processes", "is 9, more than topics.partitions.commands = 8"),
        (
            ["gateway.processes=2", 'listeners=[{"port": 0, "transport": "websocket"}]'],
            "listeners[0].port",
            "is 0, and several gateway processes have to find the same port",
        ),
        (["gateway.processes=65"], "gateway.processes", "not a number of processes: 1 to 64, or auto"),
        (["kafka.security_protocol=SASL_SSL"], "kafka.sasl_username", "is empty: security_protocol = SASL_SSL needs it"),
        (['profiles=[{"clients": "a", "backoff": {"max": 5}}]'], "profiles[0].backoff.max", "less than backoff.initial"),
        (
            ["max_subscription_bytes=512KiB"],
            "session.max_subscription_bytes",
            "a gateway is told all topic filters in one record",
        ),
        (["delivery_limit=0"], "session.delivery_limit", "would deliver nothing: write 1 or more, or -1"),
        (['profiles=[{"clients": "a", "delivery_limit": 0}]'], "profiles[0].delivery_limit", "would deliver nothing"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(overrides: list[str], key: str, words: str) -> None:
    [problem] = complaints(*overrides)
    assert f": {key}: " in problem
    assert words in problem


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[4]", "spark://one:7077,two:7077", "yarn", "k8s://https://api:6443"]
)
def test_masters_that_spark_knows_are_allowed(master: str) -> None:
    assert load_settings(overrides=[f"engine.master={master}"]).engine.master == master


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("engine.master=foo", "spark knows local[*]"),
        ("engine.master=spark://one", "spark knows local[*]"),
        ("engine.driver_memory=2", "write a number and k, m or g"),
        ("engine.driver_memory=511m", "at least 512m, which Spark needs"),
    ],
)
def test_what_spark_would_refuse_is_refused_before_it_starts(override: str, words: str) -> None:
    [problem] = complaints(override)
    assert words in problem


def test_a_queue_may_be_without_limit() -> None:
    assert load_settings(overrides=["max_mqueue_bytes=0"]).session.max_mqueue_bytes == 0
    assert load_settings(overrides=["max_mqueue_len=0", "max_mqueue_bytes=1KiB"]).session.max_mqueue_len == 0


def test_a_file_that_cannot_be_read_or_parsed_is_one_problem(file: Path) -> None:
    [missing] = complaints(config=file)
    assert "cannot be read: No such file" in missing
    file.write_text("[session\n")
    [broken] = complaints(config=file)
    assert "is not a TOML file" in broken


def test_a_flag_without_a_value_is_explained() -> None:
    assert complaints("max_inflight") == ["--set max_inflight: max_inflight: write --set section.key=value"]


@pytest.mark.parametrize("key", ["spark.executor.cores", '"spark.executor.cores"', "'spark.executor.cores'"])
def test_a_name_of_spark_may_be_in_quotes_as_in_a_file(key: str) -> None:
    assert load_settings(overrides=[f"engine.spark.{key}=2"]).engine.spark == {"spark.executor.cores": 2}


def test_kafka_security_and_options_reach_clients_of_python_and_spark() -> None:
    settings = Settings(
        kafka={
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_username": "ann",
            "sasl_password": 'a"b\\c',
            "options": {"request.timeout.ms": 5000},
        }
    )
    assert settings.kafka.client_options() == {
        "bootstrap_servers": "127.0.0.1:9092", "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ann", "sasl_plain_password": 'a"b\\c', "request_timeout_ms": 5000,
    }  # fmt: skip
    spark = settings.kafka.spark_options()
    assert spark["kafka.request.timeout.ms"] == "5000"
    assert spark["kafka.sasl.jaas.config"].endswith('ScramLoginModule required username="ann" password="a\\"b\\\\c";')
    with pytest.raises(ValueError, match=r"ca\.pem cannot be used: No such file"):
        Settings(kafka={"security_protocol": "SSL", "ssl_cafile": "/ca.pem"})


def test_places_default_to_the_data_directory() -> None:
    settings = load_settings(overrides=["engine.data_dir=/data", "engine.tables_location=s3a://bucket/tables"])
    assert settings.checkpoint_location == "/data/checkpoint"
    assert settings.tables_location == "s3a://bucket/tables"
