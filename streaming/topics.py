"""The topics: how they are created, and which settings of existing ones would lose data.

All but `inflight.publications`, `inflight.retained` and `inflight.campaigns` are keyed by client id. `inflight.messages` and
`inflight.events` are the engine's input: what is gone from them before the engine has read it is lost, so compaction (which keeps
one record of a client) and short retention are refused there. `inflight.throttle`, `inflight.leases`, `inflight.routes`,
`inflight.presence`, `inflight.campaigns`, `inflight.subscriptions` and `inflight.retained` are tables, so they are compacted and
must be. Each record has the time at which the broker got it (LogAppendTime). Kafka deletes by that time and refuses a record from
the future, messages expire by it, and gateways learn from it what time it is for all of them.
"""

import time
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import AuthorizationError, KafkaError, TopicAlreadyExistsError, UnknownTopicOrPartitionError

from sinks.kafka.kafka_python import FailFastClient
from state.setting import DAY, HOUR
from streaming.config.errors import KafkaUnreachable, UnsafeTopics
from streaming.config.settings import Settings
from streaming.config.units import format_duration

MINIMUM_RETENTION_MS: Final = 4 * 3_600_000
"""Shorter than this, a topic that somebody has to read in time is refused: a night's standstill is an ordinary thing."""

BROKERS_TIME: Final = "LogAppendTime"
_TIMESTAMP_TYPE: Final = "message.timestamp.type"
_SHORT_LIVED: Final = ("commands", "wake_ups")
_MINIMUM_COMMANDS_RETENTION_MS: Final = 10 * 60_000
_COMMANDS_RETENTION_MS: Final = DAY
"""A command that no gateway has read by then is sent again by the session."""
_PARTITIONS: Final = {
    "throttle": 4,
    "leases": 1,
    "wake_ups": 1,
    "subscriptions": 4,
    "retained": 4,
    "presence": 4,
    "campaigns": 1,
}
"""Each reader of these topics reads all of them."""
_PARTITIONS_OF: Final = {"ledger": "messages", "routes": "messages"}
"""Topics that have as many as another one: the ledger grows with the messages, and a router reads both messages and routes."""
_RECORD_OVERHEAD_BYTES: Final = 64 << 10
_MAX_MESSAGE_BYTES: Final = 2 << 20
_LEAST_DEAD_LETTER_BYTES: Final = 16 << 10
"""Room for the facts of a death, which tell what died where and why."""
_TIMEOUT_MS: Final = 30_000
_LOOK_S: Final = 0.1
_REPAIR_S: Final = 5.0
_NO_TOPIC_ID: Final = str(uuid.UUID(int=0))
_BROKERS_TIME: Final = {
    "messages": "messages expire by the clocks of those who send them",
    "leases": "the connections of a device are put in order by the clocks of the gateways",
}
_ANY_TIME: Final = "Kafka deletes records of a writer whose clock is behind, and refuses those of one whose clock is ahead"
_TABLES: Final = ("throttle", "leases", "routes", "presence", "campaigns", "subscriptions", "retained")
_OF_ALL: Final = (
    "messages",
    "events",
    "commands",
    "uplink",
    "receipts",
    "dead_letters",
    "ledger",
    "throttle",
    "leases",
    "wake_ups",
    "routes",
    "presence",
    "campaigns",
)
_OF_ROUTING: Final = ("subscriptions", "publications", "retained")
"""Topics that only `routing.enabled` needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """The wanted configuration of one topic.

    Attributes:
        retention_ms: None = compacted.
        max_record_bytes: The largest record that Inflight writes if it may.
        least_record_bytes: The topic must accept so much; records between the two are cut.
        min_insync_replicas: None = as the brokers say.
        brokers_time: Why a record has the time at which the broker got it, and not what its writer says.
        is_ours: Only Inflight uses the topic, so it may change its settings.
    """

    name: str
    partitions: int
    replication_factor: int
    retention_ms: int | None
    minimum_retention_ms: int
    max_record_bytes: int
    least_record_bytes: int
    min_insync_replicas: int | None = None
    brokers_time: str = _ANY_TIME
    is_ours: bool = True

    @property
    def configs(self) -> dict[str, str]:
        """Kafka's configuration when Inflight creates the topic."""
        configs = {_TIMESTAMP_TYPE: BROKERS_TIME, "max.message.bytes": str(max(_MAX_MESSAGE_BYTES, self.max_record_bytes))}
        if self.min_insync_replicas is not None:
            configs["min.insync.replicas"] = str(self.min_insync_replicas)
        if self.retention_ms is None:
            # Only closed segments are compacted: in a week's, Kafka's default, a lease is renewed a hundred thousand times.
            return configs | {"cleanup.policy": "compact", "segment.ms": str(HOUR)}
        return configs | {"cleanup.policy": "delete", "retention.ms": str(self.retention_ms), "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActualTopic:
    """The present configuration of one topic.

    Attributes:
        configs: All of Kafka's topic configuration, defaults included.
        topic_id: Another one after a topic was deleted and made anew; empty if the brokers have none (before Kafka 2.8).
    """

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    topic_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReport:
    """The result of a check of all topics.

    Attributes:
        created: The names of new topics.
        repaired: The names of topics that got LogAppendTime.
        problems: Settings that lose data or stop it.
        warnings: Settings that are safe as long as nothing breaks.
        cluster_id: The id of the Kafka cluster; empty if it has none.
    """

    created: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    topics: tuple[ActualTopic, ...] = field(default=())
    cluster_id: str = ""

    @property
    def partitions(self) -> dict[str, int]:
        """Returns their numbers by topic."""
        return {topic.name: topic.partitions for topic in self.topics}


def planned_topics(settings: Settings) -> tuple[TopicPlan, ...]:
    """Returns the topics as `settings` wants them, and the topics that bindings of exchanges name for dead letters."""
    names, retention = settings.topics, settings.topics.retention
    max_record_bytes = settings.engine.max_record_bytes + _RECORD_OVERHEAD_BYTES
    plan = partial(
        TopicPlan,
        replication_factor=names.replication_factor,
        max_record_bytes=max_record_bytes,
        min_insync_replicas=names.min_insync_replicas if names.min_insync_replicas > 0 else None,
    )
    bound = (  # a binding's topic has no least retention: its owner knows who reads it, and how soon
        plan(
            name=name,
            partitions=names.partitions.dead_letters,
            retention_ms=retention.dead_letters,
            minimum_retention_ms=0,
            least_record_bytes=_LEAST_DEAD_LETTER_BYTES,
            is_ours=False,
        )
        for name in settings.dead_letter_topics
    )
    of_routing = _OF_ROUTING if settings.routing.enabled else ()
    own = (
        plan(
            name=getattr(names, key),
            partitions=_PARTITIONS.get(key) or getattr(names.partitions, _PARTITIONS_OF.get(key, key)),
            retention_ms=None if key in _TABLES else getattr(retention, key, _COMMANDS_RETENTION_MS),
            minimum_retention_ms=_MINIMUM_COMMANDS_RETENTION_MS if key in _SHORT_LIVED else MINIMUM_RETENTION_MS,
            least_record_bytes=_LEAST_DEAD_LETTER_BYTES if key == "dead_letters" else max_record_bytes,
            brokers_time=_BROKERS_TIME.get(key, _ANY_TIME),
        )
        for key in (*_OF_ALL, *of_routing)
    )
    return (*bound, *own)


def ensure_topics(settings: Settings) -> TopicReport:
    """Creates missing topics, gives ours the brokers' time, and checks all; safe to call by several processes at once.

    Raises UnsafeTopics (with every problem), KafkaUnreachable.
    """
    plans = planned_topics(settings)
    with _Admin(settings) as admin:
        existing = set(admin.client.list_topics())
        missing = {plan.name: plan for plan in plans if plan.name not in existing}
        _require_brokers(missing.values(), len(admin.client.describe_cluster()["brokers"]))
        created = tuple(name for name, plan in missing.items() if _create(admin.client, plan))
        if missing:
            admin.client.wait_for_topics(list(missing))
        report = _repair(admin.client, plans, _report_of_all(admin.client, plans, created))
    if report.problems:
        raise UnsafeTopics(report.problems)
    return report


def check_topics(settings: Settings) -> TopicReport:
    """The same without creating or changing anything; problems are in the report. Raises KafkaUnreachable."""
    with _Admin(settings) as admin:
        return _report(admin.client, planned_topics(settings), ())


def require_safe_topics(settings: Settings) -> TopicReport:
    """Checks all topics before the engine starts. Raises UnsafeTopics, KafkaUnreachable."""
    report = check_topics(settings)
    if report.problems:
        raise UnsafeTopics(report.problems)
    return report


def dead_letter_topic_bytes(settings: Settings, report: TopicReport) -> int:
    """Returns the largest record that every topic of dead letters accepts."""
    names = {settings.topics.dead_letters, *settings.dead_letter_topics}
    return min(_record_limit(topic) for topic in report.topics if topic.name in names)


def judge(plan: TopicPlan, actual: ActualTopic, *, brokers: int) -> tuple[list[str], list[str]]:
    """(problems, warnings) of one existing topic. A problem names the configuration that mends it."""
    problems: list[str] = []
    warnings: list[str] = []
    policy = {part.strip() for part in actual.configs.get("cleanup.policy", "delete").split(",")}
    if plan.retention_ms is None:
        if policy != {"compact"}:
            problems.append(
                f"{plan.name}: cleanup.policy={','.join(sorted(policy))} forgets what is still true; set cleanup.policy=compact"
            )
    else:
        if "compact" in policy:
            problems.append(
                f"{plan.name}: cleanup.policy={','.join(sorted(policy))} keeps only one record of each client; "
                "set cleanup.policy=delete"
            )
        problems += _too_short(plan, int(actual.configs.get("retention.ms", "-1")))
        if int(actual.configs.get("retention.bytes", "-1")) >= 0:
            warnings.append(
                f"{plan.name}: retention.bytes={actual.configs['retention.bytes']} deletes unread records when there are "
                "many of them; set retention.bytes=-1 and watch the disk"
            )
    limit = _record_limit(actual)
    if plan.least_record_bytes <= limit < plan.max_record_bytes:
        warnings.append(
            f"{plan.name}: max.message.bytes={limit} cuts large dead letters, as it is when the engine starts; "
            f"set max.message.bytes={plan.max_record_bytes}"
        )
    elif limit < plan.max_record_bytes:
        problems.append(
            f"{plan.name}: max.message.bytes={limit} refuses the largest records of Inflight; "
            f"set max.message.bytes={plan.max_record_bytes} or lower engine.max_record_bytes"
        )
    if (clock := actual.configs.get(_TIMESTAMP_TYPE)) != BROKERS_TIME:
        way = ", as `inflight topics` does" if plan.is_ours else ""
        warnings.append(f"{plan.name}: {_TIMESTAMP_TYPE}={clock}: {plan.brokers_time}; set {_TIMESTAMP_TYPE}={BROKERS_TIME}{way}")
    warnings += _replication_warnings(actual, brokers)
    return problems, warnings


def _repair(client: KafkaAdminClient, plans: tuple[TopicPlan, ...], report: TopicReport) -> TopicReport:
    """Gives our topics LogAppendTime, and returns the report afterwards. It holds for new records, so nothing is lost by it.

    Where this user has no right to do so, the warnings remain.
    """
    others = {plan.name for plan in plans if plan.is_ours} & _with_writers_time(report)
    if not others:
        return report
    change = {_TIMESTAMP_TYPE: BROKERS_TIME}
    with suppress(AuthorizationError):
        client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, change) for name in sorted(others)])
    deadline = time.monotonic() + _REPAIR_S
    while True:  # each broker hears of it a moment later
        report = _report(client, plans, report.created)
        left = others & _with_writers_time(report)
        if not left or time.monotonic() > deadline:
            return replace(report, repaired=tuple(sorted(others - left)))
        time.sleep(_LOOK_S)


def _with_writers_time(report: TopicReport) -> set[str]:
    return {topic.name for topic in report.topics if topic.configs.get(_TIMESTAMP_TYPE) != BROKERS_TIME}


def _record_limit(actual: ActualTopic) -> int:
    return int(actual.configs.get("max.message.bytes", _MAX_MESSAGE_BYTES))


def _too_short(plan: TopicPlan, retention_ms: int) -> list[str]:
    if 0 <= retention_ms < plan.minimum_retention_ms:
        return [
            f"{plan.name}: retention.ms={retention_ms} deletes records that nobody has read for {format_duration(retention_ms)}; "
            f"set at least retention.ms={plan.minimum_retention_ms} ({format_duration(plan.minimum_retention_ms)})"
        ]
    return []


def _replication_warnings(actual: ActualTopic, brokers: int) -> list[str]:
    if brokers < 2:
        return []
    in_sync = int(actual.configs.get("min.insync.replicas", "1"))
    if actual.replication_factor < 2:
        return [f"{actual.name}: replication factor 1 in a cluster of {brokers}: one lost disk loses records; set it to 3"]
    if in_sync < 2:
        return [f"{actual.name}: min.insync.replicas=1: Kafka confirms what one broker has; set min.insync.replicas=2"]
    if in_sync >= actual.replication_factor:
        return [f"{actual.name}: min.insync.replicas={in_sync} of {actual.replication_factor}: one broker down stops all writing"]
    return []


def _report(client: KafkaAdminClient, plans: tuple[TopicPlan, ...], created: tuple[str, ...]) -> TopicReport:
    actual = _describe(client, [plan.name for plan in plans])
    cluster = client.describe_cluster()
    brokers = len(cluster["brokers"])
    problems: list[str] = []
    warnings: list[str] = []
    for plan in plans:
        topic = actual.get(plan.name)
        if topic is None:
            problems.append(f"{plan.name}: does not exist; `inflight topics` creates it")
            continue
        found, remarks = judge(plan, topic, brokers=brokers)
        problems += found
        warnings += remarks
    return TopicReport(
        created=created,
        problems=tuple(problems),
        warnings=tuple(warnings),
        topics=tuple(actual.values()),
        cluster_id=cluster.get("cluster_id") or "",
    )


def _report_of_all(client: KafkaAdminClient, plans: tuple[TopicPlan, ...], created: tuple[str, ...]) -> TopicReport:
    """The report, once it has all topics: each question may go to another broker, which hears of a new topic a moment later.

    What is not there after 30 seconds is a problem in the report.
    """
    wanted = {plan.name for plan in plans}
    deadline = time.monotonic() + _TIMEOUT_MS / 1000
    while True:
        is_late = time.monotonic() > deadline
        try:
            report = _report(client, plans, created)
        except UnknownTopicOrPartitionError:
            if is_late:
                raise
        else:
            if is_late or wanted == {topic.name for topic in report.topics}:
                return report
        time.sleep(_LOOK_S)


def _describe(client: KafkaAdminClient, names: list[str]) -> dict[str, ActualTopic]:
    existing = set(client.list_topics())
    names = [name for name in names if name in existing]
    if not names:
        return {}
    configs = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names], config_filter="all")[
        "topic"
    ]
    found = {}
    for topic in client.describe_topics(names):
        name = topic["name"]
        partitions = topic["partitions"]
        found[name] = ActualTopic(
            name=name,
            partitions=len(partitions),
            replication_factor=min((len(_replicas(partition)) for partition in partitions), default=0),
            configs={key: str(entry["value"]) for key, entry in configs[name].items()},
            topic_id=topic_id(topic),
        )
    return {name: found[name] for name in names}


def topic_id(description: Mapping[str, Any]) -> str:
    """Returns the id of a topic; empty if the brokers have none.

    Args:
        description: An element of kafka-python's `describe_topics`.
    """
    found = description.get("topic_id")
    return "" if found is None or str(found) == _NO_TOPIC_ID else str(found)


def _replicas(partition: Mapping[str, Any]) -> list[int]:
    replicas: list[int] = partition["replica_nodes"]
    return replicas


def _require_brokers(missing: Collection[TopicPlan], brokers: int) -> None:
    """Raises UnsafeTopics for new topics that want more replicas than there are brokers, which Kafka would refuse."""
    wanted = max((plan.replication_factor for plan in missing), default=0)
    if wanted > brokers:
        raise UnsafeTopics(
            [
                f"topics.replication_factor is {wanted}, and {brokers} of the cluster's brokers can be seen: start the others, "
                f"or set at most {brokers}; -1 = the brokers' default.replication.factor"
            ]
        )


def _create(client: KafkaAdminClient, plan: TopicPlan) -> bool:
    """True if we created it, False if somebody was quicker."""
    options = {"num_partitions": plan.partitions, "replication_factor": plan.replication_factor, "configs": plan.configs}
    try:
        client.create_topics({plan.name: options}, timeout_ms=_TIMEOUT_MS)
    except TopicAlreadyExistsError:
        return False
    return True


class _Admin:
    """An admin client for a `with` block; what goes wrong with Kafka inside becomes KafkaUnreachable."""

    def __init__(self, settings: Settings) -> None:
        self._options = {"client_id": "inflight-topics", "kafka_client": FailFastClient, **settings.kafka.client_options()}
        self._servers = settings.kafka.bootstrap_servers
        self.client: KafkaAdminClient

    def __enter__(self) -> "_Admin":
        try:
            self.client = KafkaAdminClient(**self._options)
        except KafkaError as error:
            raise self._explained(error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.client.close()
        if isinstance(error, KafkaError):
            raise self._explained(error) from error

    def _explained(self, error: KafkaError) -> KafkaUnreachable:
        return KafkaUnreachable.of(self._servers, error, "and that this user may create and describe topics")
