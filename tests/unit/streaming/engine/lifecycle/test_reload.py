from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from streaming.config.errors import UnsafeTopics
from streaming.config.settings import Settings
from streaming.engine.lifecycle import reload as reload_module
from streaming.engine.lifecycle.reload import Reloader, reload
from streaming.engine.lifecycle.settings_log import pipeline_settings
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.topics import TopicReport

POLICIES = {"policies": [{"name": "short", "clients": "*", "message_ttl": "1s"}]}


class Query:
    def __init__(self) -> None:
        self.restarts: list[PipelineSettings] = []

    def restart(self, pipeline: PipelineSettings) -> None:
        self.restarts.append(pipeline)


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings whose topics were checked."""
    checked: list[Settings] = []

    def check(settings: Settings) -> TopicReport:
        checked.append(settings)
        return TopicReport()

    monkeypatch.setattr(reload_module, "require_safe_topics", check)
    return checked


def taken(old: dict[str, Any], *new: dict[str, Any]) -> tuple[Query, list[dict[str, Any]]]:
    query = Query()
    reloader = Reloader(Settings(**old), query, partial(pipeline_settings, commands_partitions=5))
    with capture_logs() as logs:
        for one in new:
            reloader.reconfigure(Settings(**one))
    return query, [dict(line) for line in logs]


@pytest.mark.usefixtures("topics")
def test_changed_session_settings_come_into_force() -> None:
    new = {
        **POLICIES,
        "session": {"max_inflight": 3},
        "profiles": [{"clients": "a*", "prefetch": 7}],
        "exchanges": [{"name": "x", "type": "fanout", "bindings": []}],
        "engine": {"receipts": False, "ledger": False},
    }
    query, said = taken({}, new)
    (pipeline,) = query.restarts
    assert pipeline.commands_partitions == 5
    assert pipeline.session.max_inflight == 3
    assert pipeline.policies[0].message_ttl_ms == 1_000
    assert not pipeline.receipts
    assert not pipeline.ledger
    (line,) = said
    assert line["event"] == "settings_changed"
    assert line["keys"] == ["engine.ledger", "engine.receipts", "exchanges", "policies", "profiles", "session.max_inflight"]


@pytest.mark.usefixtures("topics")
def test_the_rest_needs_a_restart_and_does_not_get_in_by_the_back_door() -> None:
    other = {"engine": {"max_payload_bytes": 1_000, "trigger_interval_ms": 77}, "topics": {"prefix": "other"}}
    query, said = taken({}, other, {**other, **POLICIES})
    keys = ["engine.max_payload_bytes", "engine.trigger_interval_ms", "topics.prefix"]
    assert [(line["event"], line.get("keys")) for line in said] == [
        ("settings_need_a_restart", keys),
        ("settings_unchanged", None),
        ("settings_need_a_restart", keys),
        ("settings_changed", ["policies"]),
    ]
    (pipeline,) = query.restarts
    assert pipeline.limits.max_payload_bytes == Settings().engine.max_payload_bytes
    assert pipeline.topics.messages == "inflight.messages"


@pytest.mark.usefixtures("topics")
def test_each_change_is_compared_with_what_is_in_force() -> None:
    query, said = taken({}, POLICIES, POLICIES, {})
    assert [line["event"] for line in said] == ["settings_changed", "settings_unchanged", "settings_changed"]
    assert [len(pipeline.policies) for pipeline in query.restarts] == [1, 0]


def test_sessions_that_do_not_fit_the_engine_as_it_runs_are_refused(topics: list[Settings]) -> None:
    """The two changes fit together, but one of them needs a restart."""
    new = {"session": {"max_mqueue_bytes": 5_000}, "engine": {"max_payload_bytes": 5_000}}
    query, said = taken({}, new)
    assert query.restarts == topics == []
    assert [line["event"] for line in said] == ["settings_need_a_restart", "settings_not_taken"]
    assert "session.max_mqueue_bytes" in said[-1]["problems"][0]


def test_a_binding_to_a_topic_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Settings) -> TopicReport:
        raise UnsafeTopics(("nowhere is missing",))

    monkeypatch.setattr(reload_module, "require_safe_topics", refuse)
    query, said = taken({}, POLICIES)
    assert query.restarts == []
    assert said[-1]["event"] == "settings_not_taken"
    assert "nowhere" in said[-1]["problems"]


def test_a_changed_password_is_named_without_its_value() -> None:
    found = reload(Settings(), Settings(kafka={"sasl_password": "geheim"}))
    assert found.needs_restart == ["kafka.sasl_password"]


def test_a_policy_keeps_its_owner_until_a_restart() -> None:
    owned = {
        "policies": [{"name": "short", "clients": "a*", "owner": "team"}],
        "permissions": [{"owner": "team", "read": ["a*"], "write": ["*"]}],
    }
    cut_off = {"policies": [{"name": "short", "clients": "a*"}]}
    (problem,) = reload(Settings(**owned), Settings(**cut_off)).problems
    assert problem.startswith("policies[0].owner is gone")
    assert reload(Settings(**owned), Settings(**owned)).problems == []
