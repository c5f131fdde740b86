"""What `inflight status` has seen at a moment: plain values, so that what they mean can be judged without Kafka or Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sinks.health import UnmetCondition
from streaming.engine.lifecycle.watching.hang import Hangs

ENGINE: Final = "engine"
"""The name of that process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """end: records that were ever appended, over all partitions. waiting: of these, for the engine; None = it has read none yet,
    or does not read this topic.
    """

    name: str
    end: int
    waiting: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """A gateway or bridge by its lease in the log. renewed_s: seconds ago, by this machine's clock. duration_s: of the lease."""

    name: str
    renewed_s: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """What a process serves on its metrics port. error: why it does not, None = it does. lacks: what /readyz misses.

    values: by the metric's name, added up over its labels.
    """

    name: str
    address: str
    error: str | None = None
    missing: tuple[UnmetCondition, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaStatus:
    """error: why nothing else is known of it. refused: it answers, and the user may not look. engines: members of the engine's
    group. taken_s: when, on a monotonic clock."""

    servers: str
    error: str | None = None
    refused: bool = False
    missing_topics: tuple[str, ...] = ()
    engines: int = 0
    topics: tuple[TopicStatus, ...] = ()
    holders: tuple[LeaseHolder, ...] = ()
    measured_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQueue:
    """A session with a long queue. oldest_s: how long ago its oldest unacknowledged message was first sent; None = none."""

    client_id: str
    connected: bool
    inflight: int
    queued: int
    queued_bytes: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTotals:
    """What all sessions hold. age_s: of these numbers. source: `checkpoint` or `metrics`. worst: the longest queues first."""

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
    """Of the configuration: what the measurements are compared with. 0 = no limit."""

    lag_low: int
    lag_high: int
    max_mqueue_len: int
    free_disk_low: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """sessions_error: why the sessions could not be read in the checkpoint, None = they were, or nobody asked."""

    kafka: KafkaStatus
    limits: Thresholds
    processes: tuple[ProcessStatus, ...] = ()
    sessions: SessionTotals | None = None
    sessions_error: str | None = None
    hangs: Hangs = field(default_factory=Hangs)

    def process(self, name: str) -> ProcessStatus | None:
        """The first of that name that answers."""
        return next((process for process in self.processes if process.name == name and process.error is None), None)


def rates(before: KafkaStatus, now: KafkaStatus) -> dict[str, float]:
    """Records appended a second between two looks, by topic."""
    passed_s = now.measured_s - before.measured_s
    ends = {topic.name: topic.end for topic in before.topics}
    return {
        topic.name: max(0, topic.end - ends[topic.name]) / passed_s for topic in now.topics if topic.name in ends and passed_s > 0
    }
