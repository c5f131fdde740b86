"""The lean worker path: Arrow in, Python lists, Arrow out, where PySpark's worker makes pandas objects for every group.

Theory of operation

What Spark sends. For `applyInPandasWithState` the JVM gives each task to a Python worker: the function, pickled, and a stream of
Arrow record batches with the rows and the states of the groups (lean_streams.py says what is in them). It wants back a stream of
record batches with the output rows and the new states. It does not see how the worker makes the one of the other.

What PySpark does with it. For every group a Series for each column, a DataFrame of them, a GroupState from JSON; then the
function; then a DataFrame for the state, and in the end one `pd.concat` over all of it. That costs five times what a session does
with its events. A function with one binary column in, and rows out that are no frames, needs none of it.

What is replaced. The worker reads a task in this order (`read_udfs` in pyspark/worker.py):
1. it makes the task's serializer, an `ApplyInPandasWithStateSerializer`;
2. it reads the offsets of the columns, and unpickles the function: this runs what the function's `__reduce__` names;
3. it wraps the function for pandas, and returns the wrapped function and the serializer;
4. `main` calls `serializer.load_stream(in)`, maps the wrapped function over it, lazily, and gives that to
   `serializer.dump_stream(…, out)`.
`use_lean_worker`, called in step 2, finds the serializer in the calling frame of `read_udfs` and gives this one object a
`load_stream` that only keeps the stream, and a `dump_stream` that reads it, calls the function and writes what it says. What the
worker has wrapped in step 3 stands in an iterator that nobody asks for an element.

Why that is safe.
- Nothing global is replaced: no class, no module attribute. The serializer belongs to one task, and the two methods are taken off
  again when the task has been written. A worker process that is used again, for another function or another query, has the
  stock path; so has one that ran another function before.
- `spark.python.use.daemon=false`, where pyspark/worker.py is `__main__`, makes no difference, because nothing is looked up by
  module.
- The streams are opened, started, and closed by PySpark's own code: an exception reaches the JVM as it does in the stock path.
  Only the frames in its traceback differ. A `StopIteration` in the function becomes PySpark's error for it
  (`fail_on_stopiteration`).
- State rows are pickled with PySpark's protocol, state properties are the same JSON, the schemas are the same:
  tests/unit/streaming/spark_internals/test_lean_worker.py compares both paths byte for byte, tests/spark/test_lean_worker.py on
  streams of a real JVM. A checkpoint that one path wrote is continued by the other.
- Only one thing is done otherwise: a batch is also written when it is large (`BATCH_BYTES`), which the JVM allows.

When it is off. `why_off` says it before anything runs: a PySpark version that was not tried. In the worker: when the function is
unpickled anywhere but in `read_udfs` (in a test, in the driver), with Spark's UDF profiler, with Arrow's large types. The stock
path then gives the same results. With `engine.lean_worker = false` it is never used.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import FrameType
from typing import IO, Any, Final, TypeAlias

import pyspark
from pyspark.sql.pandas.serializers import ApplyInPandasWithStateSerializer, ArrowStreamSerializer
from pyspark.sql.streaming.state import GroupState
from pyspark.util import fail_on_stopiteration

from streaming.spark_internals.lean_streams import Layout, LeanState, RowFormat, read_groups, write_batches

TRIED_VERSIONS: Final = frozenset(("4.2.0",))

LeanFunction: TypeAlias = Callable[[tuple[str, ...], Iterable[bytes], GroupState], Iterable[Any]]
"""key, cells of the group's binary column (none after a time-out), state → output rows, as the `RowFormat` takes them.

All columns of the key are strings. The state is the one that a function for `applyInPandasWithState` gets, with the same duties.
"""


def why_off() -> str | None:
    """Why this PySpark gets the stock path; None = it gets the lean one."""
    if pyspark.__version__ in TRIED_VERSIONS:
        return None
    return f"PySpark {pyspark.__version__} was not tried: {', '.join(sorted(TRIED_VERSIONS))}"


def use_lean_worker(function: LeanFunction, *, value_column: int, row_format: RowFormat) -> bool:
    """Gives the task that this worker is reading just now to `function`. Called by what unpickles the function, for every task.

    value_column: the place of the binary column among the columns that the stock function's frames have.
    row_format: how its output rows become Arrow columns; the same that Spark is told to expect.
    Returns False, and changes nothing, where the stock path has to run; a worker then says why, once, on its standard error.
    """
    task = _task_being_read()
    if task is None:
        return False
    reason = why_off() or _why_not_for(task)
    if reason is not None:
        _say(reason)
        return False
    serializer = task["ser"]
    layout = _layout(task["args_offsets"], value_column)
    lean = _LeanTask(serializer, fail_on_stopiteration(function), layout, row_format)
    # On the object, not on its class: the next task makes another one.
    serializer.load_stream, serializer.dump_stream = lean.load_stream, lean.dump_stream
    return True


class _LeanTask:
    """What `main` calls in place of the serializer's own methods. One task, then it is done."""

    def __init__(self, serializer: Any, function: LeanFunction, layout: Layout, row_format: RowFormat) -> None:
        self._serializer = serializer
        self._function = function
        self._layout = layout
        self._row_format = row_format
        self._infile: IO[bytes] | None = None

    def load_stream(self, infile: IO[bytes]) -> Iterator[Any]:
        self._infile = infile
        return iter(())

    def dump_stream(self, _: Iterable[Any], outfile: IO[bytes]) -> None:
        serializer = self._serializer
        try:
            batches = write_batches(self._results(), self._row_format, serializer.arrow_max_records_per_batch)
            # As the last two lines of the stock method: the marker of the stream is written when the first batch is there.
            ArrowStreamSerializer.dump_stream(serializer, serializer._write_stream_start(batches, outfile), outfile)
        finally:
            # Also lets go of the streams: this object and the serializer hold each other.
            del serializer.load_stream, serializer.dump_stream

    def _results(self) -> Iterator[tuple[LeanState, Iterable[Any]]]:
        function = self._function
        batches = ArrowStreamSerializer.load_stream(self._serializer, self._infile)  # type: ignore[arg-type]
        for key, cells, state in read_groups(batches, self._layout, self._serializer.state_object_schema):
            yield state, function(key, cells, state)


def _task_being_read() -> dict[str, Any] | None:
    """The local variables of `read_single_udf` and `read_udfs` that matter here; None outside of them."""
    found: dict[str, Any] = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name
        if name == "read_single_udf":
            found["args_offsets"] = frame.f_locals.get("args_offsets")
        elif name == "read_udfs":
            found |= {name: frame.f_locals.get(name) for name in ("ser", "num_udfs", "runner_conf")}
            return found
        frame = frame.f_back
    return None


def _why_not_for(task: dict[str, Any]) -> str | None:
    if type(task["ser"]) is not ApplyInPandasWithStateSerializer or task["num_udfs"] != 1 or not task.get("args_offsets"):
        return "the worker reads its tasks in another way than PySpark's own"
    if task["runner_conf"].udf_profiler:
        return "Spark's UDF profiler is on"
    if task["runner_conf"].use_large_var_types:
        return "spark.sql.execution.arrow.useLargeVarTypes is on"
    return None


def _layout(args_offsets: list[int], value_column: int) -> Layout:
    """args_offsets: length of what follows, number of key columns, those columns, the columns of the frame."""
    keys = args_offsets[1]
    return Layout(tuple(args_offsets[2 : 2 + keys]), args_offsets[2 + keys + value_column])


@cache
def _say(reason: str) -> None:
    sys.stderr.write(f"inflight: this Python worker takes PySpark's stock path: {reason}\n")
    sys.stderr.flush()
