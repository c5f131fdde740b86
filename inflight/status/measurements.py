"""Defines the measurements of `inflight status` as plain values, so that they can be evaluated without Kafka or Spark."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sinks.health import UnmetCondition
from sinks.host.lease import RENEWALS
from streaming.engine.lifecycle.losses import Losses
from streaming.engine.watching.dropped_messages import DroppedMessages
from streaming.engine.watching.engine_ends import EngineEnds
from streaming.engine.watching.misplaced_records import MisplacedRecords
from streaming.engine.watching.watchdog import Hangs

ENGINE: Final = "engine"
STANDBY: Final = "standby"
"""Names of an engine: that works or begins, and that waits."""
_LATE: Final = 1.2
"""A renewal is missing after so many times the time between two."""
DROPPED_CONNECTED: Final = "inflight_engine_dropped_connected_total"
OFFERS_REFUSED: Final = "inflight_gateway_offers_refused_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """Record counts of a topic.

    Attributes:
        end: Records ever appended, over all partitions.
        waiting: Records that the engine has not read, up to the high watermark; None = it has read none yet, or does not read
            this topic.
        unrouted: Records that no matcher has finished; None = they have finished none yet, or do not read this topic.
    """

    name: str
    end: int
    waiting: int | None = None
    unrouted: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPartition:
    """A partition with an open transaction. Nobody reads what comes after its first record.

    Attributes:
        offset: Of that record: the last stable offset.
        records: From there to the high watermark.
        open_s: Its age in seconds, by this machine's clock; None = unknown.
        writer: The transactional id, for people; empty = unknown.
    """

    topic: str
    partition: int
    offset: int
    records: int
    open_s: float | None
    writer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """A gateway or bridge with a lease in the log.

    Attributes:
        renewed_s: Age of the newest renewal in seconds, by this machine's clock.
        duration_s: Duration of the lease.
        lacks: What it needs to serve devices and has not, by its newest renewal; empty = nothing.
        begun_s: Age in seconds of the oldest renewal in the log; None = unknown.
    """

    name: str
    renewed_s: float
    duration_s: float
    lacks: str = ""
    begun_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """The metrics and the readiness of a process.

    Attributes:
        error: Why it serves neither; None = it does.
        missing: The unmet conditions of /readyz.
        values: By name of the metric, summed over its labels.
        by_label: By name and label, of the metrics whose labels matter here.
    """

    name: str
    address: str
    error: str | None = None
    missing: tuple[UnmetCondition, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    by_label: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def is_standby(self) -> bool:
        """Returns True for an engine that waits for another one to be gone."""
        return self.name == STANDBY

    @property
    def is_ready(self) -> bool:
        return self.error is None and not self.missing


@dataclass(frozen=True, slots=True, kw_only=True)
class MatcherGroup:
    """The consumer group of the matchers.

    Attributes:
        members: 0 = publications reach no subscriber.
        waiting: Records of its topics that no matcher has finished.
        finished: The sum of its offsets. It grows while the matchers work.
        stalled_s: For so long records have waited while none was finished, as far as it was measured.
    """

    group_id: str
    members: int
    waiting: int
    finished: int
    stalled_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaStatus:
    """The state of Kafka, its topics, engines and leases.

    Attributes:
        error: Why the other fields are empty; None = no error.
        refused: Kafka answers, but the user lacks the rights.
        engines: Members of the engine's consumer group.
        held: Partitions that the engine reads, with an open transaction at this moment.
        matchers: None = `routing.enabled` is false, or the user may not ask for the group.
        measured_s: Time of the measurement on a monotonic clock.
    """

    servers: str
    error: str | None = None
    refused: bool = False
    missing_topics: tuple[str, ...] = ()
    engines: int = 0
    topics: tuple[TopicStatus, ...] = ()
    holders: tuple[LeaseHolder, ...] = ()
    held: tuple[HeldPartition, ...] = ()
    matchers: MatcherGroup | None = None
    measured_s: float = 0.0

    @property
    def present_holders(self) -> tuple[LeaseHolder, ...]:
        """Returns the holders without those that another one with the same name has replaced.

        A killed process that was started again leaves its lease behind. Processes that share a port have one name, too, but
        renew their leases in turn.
        """
        return tuple(one for one in self.holders if not any(_has_replaced(other, one) for other in self.holders))


def _has_replaced(new: LeaseHolder, old: LeaseHolder) -> bool:
    misses_renewals = old.renewed_s > _LATE * old.duration_s / RENEWALS
    return misses_renewals and new.name == old.name and new.begun_s is not None and new.begun_s < old.renewed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQueue:
    """A session with a long queue.

    Attributes:
        oldest_s: Age of its oldest unacknowledged message since the first transmission; None = none.
    """

    client_id: str
    connected: bool
    inflight: int
    queued: int
    queued_bytes: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTotals:
    """Totals over all sessions.

    Attributes:
        oldest_s: Age of the oldest unacknowledged message; None = none.
        age_s: Age of these numbers.
        source: `engine`, `checkpoint` or `metrics`.
        worst: The longest queues first.
    """

    sessions: int
    connected: int
    quarantined: int
    inflight: int
    queued: int
    oldest_s: float | None
    age_s: float
    source: str
    worst: tuple[ClientQueue, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Configured limits that measurements are compared with; 0 = no limit."""

    lag_low: int
    lag_high: int
    max_mqueue_len: int
    free_disk_low: int
    backlog_high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """The measurements of one moment.

    Attributes:
        sessions_error: Why the engine gave no sessions; None = it gave them, or was not asked.
        drops: What the engine of this data directory drops for connected clients at present.
        misplaced: What it finds in wrong partitions of `inflight.messages` at present.
    """

    kafka: KafkaStatus
    limits: Thresholds
    processes: tuple[ProcessStatus, ...] = ()
    sessions: SessionTotals | None = None
    sessions_error: str | None = None
    hangs: Hangs = field(default_factory=Hangs)
    ends: EngineEnds = field(default_factory=EngineEnds)
    losses: Losses = field(default_factory=Losses)
    drops: DroppedMessages = field(default_factory=DroppedMessages)
    misplaced: MisplacedRecords = field(default_factory=MisplacedRecords)

    @property
    def engine(self) -> ProcessStatus | None:
        """Returns the engine that works; without one an engine that answers."""
        answering = [process for process in self.processes if process.name == ENGINE and process.error is None]
        return next((process for process in answering if process.is_ready), next(iter(answering), None))

    @property
    def has_standby(self) -> bool:
        return any(process.is_standby and process.is_ready for process in self.processes)


def with_standbys(processes: tuple[ProcessStatus, ...], may_wait: Collection[str]) -> tuple[ProcessStatus, ...]:
    """Returns the processes with the name of a standby for an engine that is starting to wait.

    Until it waits, it looks like an engine that is starting to work.

    Args:
        may_wait: Addresses of engines that wait while another one works.
    """
    if not any(process.name == ENGINE and process.is_ready for process in processes):
        return processes
    return tuple(
        replace(process, name=STANDBY)
        if process.name == ENGINE and process.address in may_wait and not process.is_ready
        else process
        for process in processes
    )


def with_stall(before: KafkaStatus, now: KafkaStatus) -> KafkaStatus:
    """Returns `now`, which knows for how long the matchers have finished nothing.

    Args:
        before: An earlier measurement.
    """
    earlier, matchers = before.matchers, now.matchers
    if earlier is None or matchers is None or earlier.finished != matchers.finished or not (earlier.waiting and matchers.waiting):
        return now
    stalled_s = earlier.stalled_s + now.measured_s - before.measured_s
    return replace(now, matchers=replace(matchers, stalled_s=stalled_s))


def rates(before: KafkaStatus, now: KafkaStatus) -> dict[str, float]:
    """Returns the records appended per second between two measurements, by topic."""
    passed_s = now.measured_s - before.measured_s
    ends = {topic.name: topic.end for topic in before.topics}
    return {
        topic.name: max(0, topic.end - ends[topic.name]) / passed_s for topic in now.topics if topic.name in ends and passed_s > 0
    }


def format_age(seconds: float) -> str:
    """Returns `12 s`, `3 min`, `5.2 h` or `3.0 d`."""
    for unit, length_s, places in ("d", 86_400, 1), ("h", 3_600, 1), ("min", 60, 0):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.{places}f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
