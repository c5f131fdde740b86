"""PySpark's own worker code on a given Arrow stream, in this process and without a JVM: what it answers, byte for byte."""

import io
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
from pyspark import cloudpickle, worker
from pyspark.serializers import CPickleSerializer, write_int, write_long, write_with_length
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, IntegerType, LongType, StringType, StructField, StructType
from pyspark.util import PythonEvalType

from state.records.record import SinkRecord
from streaming.engine.operator.sink_columns import SinkRows, frames_of
from streaming.spark_internals.lean_worker import use_lean_worker

STATE_TYPE = StructType(
    [
        StructField("version", IntegerType()),
        StructField("connected", BooleanType()),
        StructField("inflight", IntegerType()),
        StructField("queued", IntegerType()),
        StructField("queued_bytes", LongType()),
        StructField("oldest_unacked_ms", LongType()),
        StructField("next_deadline_ms", LongType()),
        StructField("blob", BinaryType()),
    ]
)
OUTPUT_TYPE = StructType(
    [
        StructField("topic", StringType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))),
        StructField("partition", IntegerType()),
    ]
)
INPUT_SCHEMA = pa.schema(
    [
        pa.field("client_id", pa.string()),
        pa.field("record", pa.binary()),
        pa.field(
            "__state",
            pa.struct(
                [
                    pa.field("properties", pa.string()),
                    pa.field("keyRowAsUnsafe", pa.binary()),
                    pa.field("object", pa.binary()),
                    pa.field("startOffset", pa.int32()),
                    pa.field("numRows", pa.int32()),
                    pa.field("isLastChunk", pa.bool_()),
                ]
            ),
        ),
    ]
)
OFFSETS = [4, 1, 0, 0, 1]
"""Four numbers follow, one key column, column 0; the frame has the columns 0 and 1."""
NOW = 1_700_000_000_000


@dataclass(frozen=True)
class Given:
    """A group as the JVM sends it. row: its state, None = there is none."""

    key: str
    cells: tuple[bytes, ...] = ()
    row: tuple[Any, ...] | None = None
    timed_out: bool = False

    def properties(self) -> str:
        return json.dumps(
            {
                "optionalValue": None,
                "batchProcessingTimeMs": NOW,
                "eventTimeWatermarkMs": -1,
                "timeoutConf": GroupStateTimeout.ProcessingTimeTimeout,
                "hasTimedOut": self.timed_out,
                "watermarkPresent": False,
                "defined": self.row is not None,
                "updated": False,
                "removed": False,
                "timeoutTimestamp": -1,
            },
            separators=(",", ":"),
        )

    def object(self) -> bytes | None:
        if self.row is None:
            return None
        text = STATE_TYPE.json().encode()
        # As the JVM's RowPickler: a converter, made of the parsed schema, called with the values.
        schema = b"cpyspark.sql.types\n_parse_datatype_json_string\nX" + len(text).to_bytes(4, "little") + text + b"\x85R"
        values = b"".join(pickle.dumps(value, 2)[2:-1] if type(value) is not bytes else _pickled(value) for value in self.row)
        return b"\x80\x02cpyspark.sql.types\n_create_row_inbound_converter\n" + schema + b"\x85R(" + values + b"tR."


def _pickled(value: bytes) -> bytes:
    return b"T" + len(value).to_bytes(4, "little") + value


def arrow_stream(groups: Iterable[Given], batch_rows: int = 2_000, schema: pa.Schema = INPUT_SCHEMA) -> bytes:
    """Returns a stream as the JVM writes it: batches of at most `batch_rows` rows, groups divided where a batch is full."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, schema) as writer:
        keys: list[str] = []
        cells: list[bytes | None] = []
        chunks: list[dict[str, Any] | None] = []

        def flush() -> None:
            if keys:
                padded = [*chunks, *[None] * (len(keys) - len(chunks))]
                mask = pa.array([chunk is None for chunk in padded])
                fields = list(schema.field(2).type)
                columns = [
                    pa.array([_filler(field.type) if chunk is None else chunk[field.name] for chunk in padded], field.type)
                    for field in fields
                ]
                state = pa.StructArray.from_arrays(columns, fields=fields, mask=mask)
                writer.write_batch(
                    pa.RecordBatch.from_arrays([pa.array(keys), pa.array(cells, pa.binary()), state], schema=schema)
                )
            keys.clear()
            cells.clear()
            chunks.clear()

        for group in groups:
            rows: Sequence[bytes | None] = (None,) if group.timed_out else group.cells
            done = 0
            while done < len(rows):
                part = rows[done : done + batch_rows - len(keys)]
                done += len(part)
                chunks.append(
                    {
                        "properties": group.properties(),
                        "keyRowAsUnsafe": b"unsafe:" + group.key.encode(),
                        "object": group.object(),
                        "startOffset": len(keys),
                        "numRows": len(part),
                        "isLastChunk": done == len(rows),
                    }
                )
                keys += [group.key] * len(part)
                cells += part
                if len(keys) >= batch_rows:
                    flush()
        flush()
    return out.getvalue()


def _filler(kind: pa.DataType) -> Any:
    return {"string": "", "binary": b"", "int32": 0, "bool": False}[str(kind)]


Body = Callable[[tuple[str, ...], Iterable[bytes], GroupState], Iterable[SinkRecord]]


class Probe:
    """A function for both paths: `body` on cells. Which path ran is in `ran`."""

    ran: ClassVar[list[str]] = []

    def __init__(self, body: Body, *, lean: bool) -> None:
        self.body = body
        self.lean = lean

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.body, self.lean)

    def __call__(self, key: tuple[str, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        Probe.ran.append("stock")
        # An empty answer of the stock path is an empty frame or none at all.
        return frames_of(list(self.body(key, _cells(frames), state)))


def _cells(frames: Iterator[pd.DataFrame]) -> Iterator[bytes]:
    return (cell for frame in frames for cell in frame["record"])


def _made(body: Body, lean: bool) -> Probe:
    probe = Probe(body, lean=lean)

    def leanly(key: tuple[str, ...], cells: Iterable[bytes], state: GroupState) -> Iterable[SinkRecord]:
        Probe.ran.append("lean")
        return body(key, cells, state)

    if lean:
        use_lean_worker(leanly, value_column=1, row_format=SinkRows())
    return probe


class Task:
    """A task that PySpark's worker has read; `run` gives it its input."""

    def __init__(self, function: Any, *, offsets: Sequence[int] = OFFSETS, **conf: str) -> None:
        infile = io.BytesIO()
        write_int(1, infile)  # functions
        write_int(len(offsets), infile)
        for offset in offsets:
            write_int(offset, infile)
            infile.write(b"\x00")  # not a keyword argument
        write_int(1, infile)  # not a chain of functions
        write_with_length(cloudpickle.dumps((function, OUTPUT_TYPE)), infile)
        write_long(1, infile)
        infile.seek(0)
        runner_conf, eval_conf = worker.RunnerConf(), worker.EvalConf()
        runner_conf._conf = {
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
            **{name.replace("_", "."): value for name, value in conf.items()},
        }
        eval_conf.get = lambda *_, **__: STATE_TYPE.json()  # type: ignore[method-assign]
        self.function, _, self.deserializer, self.serializer = worker.read_udfs(
            CPickleSerializer(), infile, PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE, runner_conf, eval_conf
        )

    def run(self, given: Any, outfile: Any = None) -> bytes:
        """Runs the task as `process` in PySpark's worker does. given: the bytes of an Arrow stream, or a file of them."""
        outfile = io.BytesIO() if outfile is None else outfile
        infile = io.BytesIO(given) if isinstance(given, bytes) else given
        self.written = outfile
        self.serializer.dump_stream(self.function(0, self.deserializer.load_stream(infile)), outfile)
        return outfile.getvalue() if isinstance(outfile, io.BytesIO) else b""


@dataclass(frozen=True)
class Answer:
    """The answer as the JVM reads it."""

    schema: pa.Schema
    rows: list[dict[str, Any]]
    states: list[dict[str, Any]]
    sizes: list[tuple[int, int]]
    """Output rows and states of each batch."""

    def without_sizes(self) -> "Answer":
        return replace(self, sizes=[])


def read_answer(answer: bytes) -> Answer:
    assert answer[:4] == (-6).to_bytes(4, signed=True)  # START_ARROW_STREAM
    reader = pa.ipc.open_stream(io.BytesIO(answer[4:]))
    rows: list[dict[str, Any]] = []
    states: list[dict[str, Any]] = []
    sizes = []
    for batch in reader:
        batch.validate(full=True)
        count = batch.column(0)[0].as_py()
        assert batch.column(0).to_pylist() == [count] * batch.num_rows
        sizes.append((count["dataCount"], count["stateCount"]))
        rows += batch.column(1).to_pylist()[: count["dataCount"]]
        states += batch.column(2).to_pylist()[: count["stateCount"]]
    return Answer(reader.schema, rows, states, sizes)
