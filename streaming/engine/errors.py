"""Why the engine does not start, or has stopped. Each text ends with what to do."""

from state.errors import InflightError


class CheckpointInUse(InflightError):
    """Another engine writes the checkpoint."""


class CheckpointMismatch(InflightError):
    """The configuration does not fit the checkpoint."""


class CannotRepartition(InflightError):
    """The sessions stay in the state partitions in which they are."""


class RecordsGone(InflightError):
    """Kafka no longer has what the checkpoint has not read."""


class EngineRuns(InflightError):
    """Another engine, with another checkpoint, works on the same topics."""


class EngineFenced(InflightError):
    """Another engine has taken over while this one ran."""


class PartitionsChanged(InflightError):
    """A topic has another number of partitions than the engine, or its checkpoint, began with."""


class QueryFailed(InflightError):
    """The query ended by itself; the text has Spark's reason."""


class NewerEvent(QueryFailed):
    """The query has come to an event that a newer version of Inflight has written."""


class NewerCheckpoint(InflightError):
    """A newer version of Inflight has written the checkpoint, in a form that this one cannot read."""


class UnreadableSettings(InflightError):
    """A micro-batch has to be executed again, and the settings that it had are not known."""


class DiskFull(InflightError):
    """Something could not be written because a disk has no room."""
