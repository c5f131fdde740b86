"""The methods that replace those of a task's serializer (lean_worker.py).

Tried with PySpark 4.2.0. Importing this module with a PySpark that lacks one of these names raises ImportError; lean_worker.py
then takes the stock path.
"""

from collections.abc import Iterable, Iterator
from typing import IO, Any

from pyspark.sql.pandas.serializers import ApplyInPandasWithStateSerializer, ArrowStreamSerializer
from pyspark.util import fail_on_stopiteration

from streaming.spark_internals.lean_streams import Layout, LeanFunction, LeanState, RowFormat, read_groups, write_batches


def replace_serializer_methods(
    task: dict[str, Any], function: LeanFunction, value_column: int, row_format: RowFormat
) -> str | None:
    """Gives the serializer of a task the two methods of `_LeanTask`. Returns why that is impossible, None if it is done.

    Args:
        task: The local variables of PySpark's `read_udfs`.
    """
    serializer, conf = task["ser"], task["runner_conf"]
    if type(serializer) is not ApplyInPandasWithStateSerializer or task["num_udfs"] != 1 or not task.get("args_offsets"):
        return "the worker reads its tasks in another way than PySpark's own"
    if conf.udf_profiler:
        return "Spark's UDF profiler is on"
    if conf.use_large_var_types:
        return "spark.sql.execution.arrow.useLargeVarTypes is on"
    layout = layout_of(task["args_offsets"], value_column)
    lean = _LeanTask(serializer, fail_on_stopiteration(function), layout, row_format)
    # On the object, not on its class: the next task makes another object.
    serializer.load_stream, serializer.dump_stream = lean.load_stream, lean.dump_stream  # type: ignore[method-assign]
    return None


def layout_of(args_offsets: list[int], value_column: int) -> Layout:
    """Reads PySpark's offsets: the length of the rest, the number of key columns, those columns, the columns of the frame."""
    keys = args_offsets[1]
    return Layout(tuple(args_offsets[2 : 2 + keys]), args_offsets[2 + keys + value_column])


class _LeanTask:
    """One task. PySpark's `main` calls these methods instead of the serializer's own."""

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
            # Like the last two lines of the stock method: the marker of the stream is written when the first batch is ready.
            ArrowStreamSerializer.dump_stream(serializer, serializer._write_stream_start(batches, outfile), outfile)
        finally:
            # This object and the serializer hold each other; this breaks the cycle and so frees the streams.
            del serializer.load_stream, serializer.dump_stream

    def _results(self) -> Iterator[tuple[LeanState, Iterable[Any]]]:
        function = self._function
        batches = ArrowStreamSerializer.load_stream(self._serializer, self._infile)  # type: ignore[arg-type]
        for key, cells, state in read_groups(batches, self._layout, self._serializer.state_object_schema):
            yield state, function(key, cells, state)
