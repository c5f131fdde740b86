"""Why the engine does not start, or has stopped. Each text ends with what to do."""

from state.errors import InflightError


class CheckpointInUse(InflightError):
    """Another engine writes the checkpoint."""


class CheckpointMismatch(InflightError):
    """The configuration does not fit the checkpoint."""


class QueryFailed(InflightError):
    """The query ended by itself; the text has Spark's reason."""
