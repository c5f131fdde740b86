"""Why the engine does not start, or has stopped. Each text ends with what to do."""

from state.errors import InflightError


class CheckpointInUse(InflightError):
    """Another engine writes the checkpoint."""


class CheckpointMismatch(InflightError):
    """The configuration does not fit the checkpoint."""


class CannotRepartition(InflightError):
    """The sessions stay in the state partitions in which they are."""


class EngineRuns(InflightError):
    """Another engine, with another checkpoint, works on the same topics."""


class EngineFenced(InflightError):
    """Another engine has taken over while this one ran."""


class PartitionsChanged(InflightError):
    """A topic has another number of partitions than the engine, or its checkpoint, began with."""


class QueryFailed(InflightError):
    """The query ended by itself; the text has Spark's reason."""


class UnreadableSettings(InflightError):
    """A micro-batch has to be executed again, and the settings that it had are not known."""
