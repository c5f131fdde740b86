"""Which connections the sessions have, by the newest committed micro-batch: what is ended when a lease has passed."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from state.model import ClientId
from state.session_codec import connection_of


class OpenConnection(NamedTuple):
    """What a session takes for its connection."""

    client_id: ClientId
    connection_id: int
    lease_id: str


_COLUMNS = pa.schema([("client_id", pa.string()), ("connection_id", pa.int64()), ("lease_id", pa.string())])


def connections_without_lease(spark: SparkSession, checkpoint: str, live: frozenset[str]) -> list[OpenConnection]:
    """The connections whose lease is none of `live`; those of versions without leases are left out. Reads every session once.

    Raises PySparkException when the checkpoint cannot be read, as before the first micro-batch.
    """
    rows = spark.read.format("statestore").load(checkpoint)
    (key,) = rows.select("key.*").columns
    state = F.col("value.groupState")
    blobs = rows.where(state["connected"]).select(F.col("key")[key].alias("client_id"), state["blob"].alias("blob"))
    found = blobs.mapInArrow(
        partial(_without_lease, live=live),
        "client_id string, connection_id long, lease_id string",
    )
    return [OpenConnection(*row) for row in found.collect()]


def _without_lease(batches: Iterator[pa.RecordBatch], live: frozenset[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = [
            OpenConnection(client_id, *connection)
            for client_id, blob in zip(*(column.to_pylist() for column in batch.columns), strict=True)
            if (connection := connection_of(blob)) is not None and _is_over(*connection, live)
        ]
        yield pa.RecordBatch.from_pylist([connection._asdict() for connection in found], schema=_COLUMNS)


def _is_over(connection_id: int, lease_id: str, live: frozenset[str]) -> bool:
    """An id that no gateway can have made, and Arrow cannot carry, is nobody's business here."""
    return bool(lease_id) and lease_id not in live and connection_id < 1 << 63
