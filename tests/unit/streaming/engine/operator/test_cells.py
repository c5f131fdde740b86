"""streaming/engine/operator/cells.py: records of Kafka on their way from Spark's JVM to its Python workers."""

import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from streaming.engine.operator.cells import decode_source_record


@given(value=st.none() | st.binary(), headers=st.lists(st.tuples(st.text(), st.none() | st.binary())))
def test_a_cell_as_spark_writes_it_is_read_byte_for_byte(value: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
    def spark(fields: dict[str, object]) -> dict[str, object]:
        # to_json leaves nulls out and writes binary as base64.
        encoded = {key: base64.b64encode(v).decode() if isinstance(v, bytes) else v for key, v in fields.items()}
        return {key: v for key, v in encoded.items() if v is not None}

    cell = spark({"s": 1, "p": 2, "o": 3, "t": 4, "v": value, "k": b"\xff"})
    cell["h"] = [spark({"key": name, "value": content}) for name, content in headers]
    record = decode_source_record(json.dumps(cell).encode())
    assert (record.source, record.partition, record.offset, record.timestamp_ms) == (1, 2, 3, 4)
    assert (record.value, record.key) == (value, b"\xff")
    assert [(header.key, header.value) for header in record.headers] == headers
