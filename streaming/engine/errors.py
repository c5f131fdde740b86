"""Errors for which the engine does not start or has stopped. Each text ends with what to do."""

from state.errors import InflightError


class CheckpointInUse(InflightError):
    """Another engine writes the checkpoint."""


class CheckpointMismatch(InflightError):
    """The configuration does not fit the checkpoint."""


class CannotRepartition(InflightError):
    """The sessions cannot be repartitioned; they stay in their state partitions."""


class EngineRuns(InflightError):
    """Another engine with another checkpoint runs on the same topics."""


class EngineClockOff(InflightError):
    """The clock of this machine is too far from the brokers' for the times of sessions and messages."""


class EngineFenced(InflightError):
    """Another engine has taken over while this one ran."""


class PartitionsChanged(InflightError):
    """A topic has another number of partitions than at the start of the engine or its checkpoint."""


class QueryFailed(InflightError):
    """The query ended by itself; the text contains Spark's reason."""


class EngineDied(InflightError):
    """Spark or its JVM failed; the text has the cause from Spark's log if there is one."""


class NewerEvent(QueryFailed):
    """The query has reached an event that a newer version of Inflight wrote."""


class NewerCheckpoint(InflightError):
    """A newer version of Inflight wrote the checkpoint in a format that this one cannot read."""


class UnreadableSettings(InflightError):
    """A micro-batch has to be executed again, and its settings are unknown."""


class DiskFull(InflightError):
    """Something could not be written because a disk has no room."""
