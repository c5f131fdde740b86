"""Finds the connections of the newest committed sessions whose lease has expired."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from state.model import ClientId
from state.session_codec import connection_of
from streaming.spark_internals.state_rows import state_rows


class OpenConnection(NamedTuple):
    """The connection that a session believes it has."""

    client_id: ClientId
    connection_id: int
    lease_id: str


_COLUMNS = pa.schema([("client_id", pa.string()), ("connection_id", pa.int64()), ("lease_id", pa.string())])


def connections_without_lease(spark: SparkSession, checkpoint: str, live: frozenset[str]) -> list[OpenConnection]:
    """Returns the connections whose lease is not in `live`, without those of versions that had no leases.

    Reads every session once. Raises what `state_rows` raises.
    """
    rows = state_rows(spark, checkpoint)
    found = (
        rows.where("connected")
        .select("client_id", "blob")
        .mapInArrow(partial(_without_lease, live=live), "client_id string, connection_id long, lease_id string")
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
    """Ignores ids that Arrow cannot carry: no gateway makes such an id."""
    return bool(lease_id) and lease_id not in live and connection_id < 1 << 63
