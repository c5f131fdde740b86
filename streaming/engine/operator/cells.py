"""The two JSON forms in which records cross the border between Spark's JVM and its Python workers.

In:  one record of Kafka is one binary cell, `to_json` of the columns that streaming/engine/query.py selects.
Out: everything that one client has to say in a micro-batch is one binary cell, a JSON array that `from_json` parses into
     rows of the Kafka sink.

One cell each way, because Spark's Python worker converts every further column anew for every client. `to_json`, `from_json` and
msgspec agree on base64 for bytes, so every byte arrives as it left (tests/spark/test_round_trip.py).
"""

from typing import Final

import msgspec

from state.records.record import Header, SinkRecord

SINK_RECORDS_SCHEMA: Final = (
    "array<struct<topic: string, key: binary, value: binary, headers: array<struct<key: string, value: binary>>, partition: int>>"
)
"""The schema with which Spark reads what `encode_sink_records` wrote."""

EVENTS: Final = 0
MESSAGES: Final = 1
"""Values of `SourceRecord.source`. Events sort first: a device's acknowledgement frees the slot that a new message takes."""


_SHORT: Final = {
    "source": "s",
    "partition": "p",
    "offset": "o",
    "timestamp_ms": "t",
    "headers": "h",
    "value": "v",
    "key": "k",
}


class SourceRecord(msgspec.Struct, frozen=True, rename=_SHORT):
    """One record of `inflight.messages` or `inflight.events`.

    timestamp_ms: as Kafka has it, producers may write nonsense. value: None = a tombstone.
    key: only where the key is no client id; everywhere else the group says it.
    """

    source: int
    partition: int
    offset: int
    timestamp_ms: int = -1
    headers: tuple[Header, ...] = ()
    value: bytes | None = None
    key: bytes | None = None


_decoder: Final = msgspec.json.Decoder(SourceRecord)
_encoder: Final = msgspec.json.Encoder()


def decode_source_record(cell: bytes) -> SourceRecord:
    """Reads a cell that streaming/engine/query.py made; whatever the Kafka record holds, the cell is well-formed."""
    return _decoder.decode(cell)


def encode_sink_records(records: list[SinkRecord]) -> bytes:
    """The cell for all records of one client, in the order in which Kafka shall have them."""
    return _encoder.encode(records)
