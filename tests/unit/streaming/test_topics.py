"""Existing topics are checked: some lose data, others only might."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from kafka.admin import ConfigResource
from kafka.errors import UnknownTopicOrPartitionError

from streaming.config.settings import Settings
from streaming.topics import ActualTopic, TopicPlan, TopicReport, dead_letter_topic_bytes, ensure_topics, judge, planned_topics

SETTINGS = Settings()
PLANS = {plan.name: plan for plan in planned_topics(SETTINGS)}
INPUT = ("inflight.messages", "inflight.events")
HOUR_MS = 3_600_000


def actual(plan: TopicPlan, changes: Mapping[str, str] | None = None, *, replicas: int = 1) -> ActualTopic:
    configs = {"min.insync.replicas": "1", **plan.configs, **(changes or {})}
    return ActualTopic(name=plan.name, partitions=plan.partitions, replication_factor=replicas, configs=configs)


def problems_of(name: str, changes: Mapping[str, str]) -> list[str]:
    return judge(PLANS[name], actual(PLANS[name], changes), brokers=1)[0]


def test_the_prefix_is_configurable() -> None:
    names = [plan.name for plan in planned_topics(Settings(topics={"prefix": "fleet-7"}))]
    assert names[0] == "fleet-7.messages"
    assert all(name.startswith("fleet-7.") for name in names)


def test_replication_is_the_brokers_matter_unless_it_is_configured() -> None:
    assert all("min.insync.replicas" not in plan.configs and plan.replication_factor == -1 for plan in PLANS.values())
    topics = {"replication_factor": 3, "min_insync_replicas": 2}
    exchange = {"name": "dlx", "bindings": [{"key": "#", "to": "topic:mine"}]}
    configured = planned_topics(Settings(topics=topics, exchanges=[exchange]))
    assert "mine" in {plan.name for plan in configured}
    for plan in configured:
        assert (plan.replication_factor, plan.configs["min.insync.replicas"]) == (3, "2")
        assert judge(plan, actual(plan, replicas=3), brokers=3) == ([], [])


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_topic_that_inflight_created_has_no_fault_on_one_broker(plan: TopicPlan) -> None:
    assert judge(plan, actual(plan), brokers=1) == ([], [])


def test_only_the_tables_are_compacted() -> None:
    tables = ("throttle", "leases", "routes", "presence", "campaigns", "subscriptions", "retained")
    assert compacted(PLANS.values()) == [f"inflight.{name}" for name in tables]


def test_without_routing_there_are_three_topics_less() -> None:
    plans = planned_topics(Settings(routing={"enabled": False}))
    of_routing = {f"inflight.{name}" for name in ("subscriptions", "publications", "retained")}
    assert PLANS.keys() - {plan.name for plan in plans} == of_routing


def compacted(plans: Iterable[TopicPlan]) -> list[str]:
    return [plan.name for plan in plans if plan.configs["cleanup.policy"] == "compact"]


@pytest.mark.parametrize("name", INPUT)
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compacted_input_loses_all_but_one_record_of_a_client(name: str, policy: str) -> None:
    [problem] = problems_of(name, {"cleanup.policy": policy})
    assert problem.startswith(f"{name}: cleanup.policy=compact")
    assert problem.endswith("set cleanup.policy=delete")


@pytest.mark.parametrize("name", [*INPUT, "inflight.uplink", "inflight.receipts", "inflight.dead-letters", "inflight.ledger"])
def test_retention_shorter_than_four_hours_is_refused(name: str) -> None:
    assert problems_of(name, {"retention.ms": str(4 * HOUR_MS)}) == []
    [problem] = problems_of(name, {"retention.ms": str(4 * HOUR_MS - 1)})
    assert "set at least retention.ms=14400000 (4h)" in problem


def test_commands_may_be_short_lived_because_the_session_sends_again() -> None:
    assert problems_of("inflight.commands", {"retention.ms": str(HOUR_MS)}) == []
    assert problems_of("inflight.commands", {"retention.ms": "1000"}) != []


def test_retention_for_ever_is_long_enough() -> None:
    assert problems_of("inflight.messages", {"retention.ms": "-1"}) == []


def test_a_limit_by_size_is_a_warning() -> None:
    plan = PLANS["inflight.messages"]
    found, [warning] = judge(plan, actual(plan, {"retention.bytes": "1000000"}), brokers=1)
    assert found == []
    assert "retention.bytes=1000000" in warning


REASONS = {
    "inflight.messages": "messages expire by the clocks of those who send them",
    "inflight.leases": "by the clocks of the gateways",
}


@pytest.mark.parametrize("topic", PLANS)
@pytest.mark.promise("clocks-off", "backend-clock")
def test_every_topic_gets_the_brokers_time_and_says_why(topic: str) -> None:
    plan = PLANS[topic]
    assert plan.configs["message.timestamp.type"] == "LogAppendTime"
    assert judge(plan, actual(plan), brokers=1) == ([], [])
    found, [warning] = judge(plan, actual(plan, {"message.timestamp.type": "CreateTime"}), brokers=1)
    assert found == []
    assert warning.endswith("set message.timestamp.type=LogAppendTime, as `inflight topics` does")
    assert REASONS.get(topic, "Kafka deletes records of a writer whose clock is behind") in warning


def test_a_topic_that_a_binding_names_is_left_to_its_owner() -> None:
    settings = Settings(exchanges=[{"name": "dlx", "bindings": [{"key": "#", "to": "topic:mine"}]}])
    plan = {plan.name: plan for plan in planned_topics(settings)}["mine"]
    assert (plan.configs["message.timestamp.type"], plan.is_ours) == ("LogAppendTime", False)
    _, [warning] = judge(plan, actual(plan, {"message.timestamp.type": "CreateTime"}), brokers=1)
    assert warning.endswith("set message.timestamp.type=LogAppendTime")


def test_a_throttle_table_that_forgets_is_refused() -> None:
    [problem] = problems_of("inflight.throttle", {"cleanup.policy": "delete"})
    assert problem.endswith("set cleanup.policy=compact")


def test_records_that_the_topic_would_refuse_are_a_problem() -> None:
    [problem] = problems_of("inflight.commands", {"max.message.bytes": "100000"})
    assert "max.message.bytes=100000" in problem


def test_a_dead_letter_topic_that_takes_less_cuts_them_and_says_so() -> None:
    settings = Settings(exchanges=[{"name": "dlx", "bindings": [{"key": "#", "to": "topic:mine"}]}])
    plans = {plan.name: plan for plan in planned_topics(settings)}
    topics = tuple(actual(plan) for plan in plans.values())
    assert dead_letter_topic_bytes(settings, TopicReport(topics=topics)) == 2 << 20
    for name in ("mine", "inflight.dead-letters"):
        small = actual(plans[name], {"max.message.bytes": "100000"})
        found, [warning] = judge(plans[name], small, brokers=1)
        assert found == []
        assert "max.message.bytes=100000 cuts large dead letters" in warning
        assert dead_letter_topic_bytes(settings, TopicReport(topics=(*topics, small))) == 100_000
        [problem], warnings = judge(plans[name], actual(plans[name], {"max.message.bytes": "16383"}), brokers=1)
        assert "max.message.bytes=16383 refuses" in problem
        assert warnings == []


def test_kafkas_own_default_record_size_is_enough_for_the_default_limits() -> None:
    assert problems_of("inflight.messages", {"max.message.bytes": "1048588"}) == []


def test_larger_records_are_asked_for_when_the_limits_are_raised() -> None:
    limits = {"max_payload_bytes": "4MiB", "max_record_bytes": "5MiB"}
    [plan, *_] = planned_topics(Settings(engine=limits, session={"max_mqueue_bytes": "16MiB"}))
    assert int(plan.configs["max.message.bytes"]) > 5 << 20


@pytest.mark.parametrize(
    ("replicas", "in_sync", "words"),
    [
        (1, "1", "replication factor 1"),
        (3, "1", "min.insync.replicas=1"),
        (2, "2", "one broker down stops all writing"),
        (3, "2", None),
    ],
)
def test_in_a_cluster_weak_replication_is_a_warning(replicas: int, in_sync: str, words: str | None) -> None:
    plan = PLANS["inflight.messages"]
    found, warnings = judge(plan, actual(plan, {"min.insync.replicas": in_sync}, replicas=replicas), brokers=3)
    assert found == []
    assert (warnings == []) if words is None else (words in warnings[0])


class SlowBrokers:
    """An admin client of a cluster whose brokers hear of new topics one after the other: each question goes to the next one.

    late: how many questions are answered by one that has not heard yet.
    """

    def __init__(self, late: int) -> None:
        self.late = late
        self.topics: dict[str, dict[str, Any]] = {}

    def _knows(self) -> bool:
        self.late -= 1
        return self.late < 0

    def create_topics(self, topics: dict[str, dict[str, Any]], timeout_ms: int) -> None:
        self.topics |= topics

    def list_topics(self) -> list[str]:
        return list(self.topics) if self._knows() else []

    def wait_for_topics(self, names: list[str]) -> None:
        """Does nothing: one broker has them."""

    def describe_configs(self, resources: list[ConfigResource], config_filter: str) -> dict[str, Any]:
        if not self._knows():
            raise UnknownTopicOrPartitionError
        configs = {
            name: {key: {"value": value} for key, value in topic["configs"].items()} for name, topic in self.topics.items()
        }
        return {"topic": configs}

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        replicas = [{"replica_nodes": [0, 1, 2]}]
        return [{"name": name, "partitions": replicas * self.topics[name]["num_partitions"]} for name in names]

    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [0, 1, 2]}

    def close(self) -> None:
        pass


@pytest.mark.parametrize("late", range(5))
def test_brokers_that_do_not_have_a_new_topic_yet_are_waited_for(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = SlowBrokers(late)
    monkeypatch.setattr("streaming.topics.KafkaAdminClient", lambda **options: brokers)
    report = ensure_topics(Settings(topics={"replication_factor": 3, "min_insync_replicas": 2}))
    assert report.created == tuple(PLANS)
    assert {topic.name for topic in report.topics} == set(PLANS)
    assert (report.problems, report.warnings) == ((), ())
