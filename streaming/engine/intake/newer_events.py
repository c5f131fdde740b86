"""Stops the query at an event that a newer version of Inflight wrote, before any session is called (docs/decisions/0024).

This engine cannot know what such an event means to its session; without it the session would continue wrongly. Spark reads all
records of a micro-batch and groups them by client before it calls the first session, and reading fails at such an event. So
nothing is sent and no state is written: a version that understands the event executes the micro-batch anew.

Foreign or damaged bytes do not carry the mark of our events (`NEWER_MARK`, state/records/record.py): they become dead letters.
"""

import re
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from state.records.events import EVENTS_VERSION, EVENTS_VERSION_BYTE
from state.records.record import NEWER_MARK

_ERROR: Final = "inflight-newer-event"
_SAID: Final = re.compile(rf"{_ERROR} (\d+) (\S+)-(\d+)-(\d+);")


def refused_if_newer(value: Column) -> Column:
    """Returns a column with the same value whose evaluation fails for an event of a newer version.

    Args:
        value: The value of a record of `inflight.events`, in a DataFrame with the columns of Kafka's source.
    """
    version, mark = F.substring(value, 1, 1), F.substring(value, 2, len(NEWER_MARK))
    is_newer = (mark == F.lit(NEWER_MARK)) & (version > F.lit(EVENTS_VERSION_BYTE))
    said = F.concat_ws(
        "-",
        F.concat(F.lit(f"{_ERROR} "), F.conv(F.hex(version), 16, 10), F.lit(" "), F.col("topic")),
        F.col("partition"),
        F.concat(F.col("offset"), F.lit(";")),
    )
    return F.when(is_newer, F.raise_error(said)).otherwise(value)


def newer_event(error: str) -> str | None:
    """Returns a message for people if such an event ended the query, else None.

    Args:
        error: Spark's text.
    """
    found = _SAID.search(error)
    if found is None:
        return None
    version, topic, partition, offset = found.groups()
    return (
        f"the event at offset {offset} in partition {partition} of {topic} has version {version}, and this Inflight reads "
        f"{EVENTS_VERSION}. Nothing of its micro-batch was sent or stored. Start the version of Inflight that the gateways and "
        "bridges have, or a newer one: it continues with this event. Only to give such events up, set "
        "engine.stop_at_newer_events = false (docs/operate/upgrade.md, The way back)"
    )
