"""Replaces PySpark's serializer in a Python worker: Arrow in, Python lists, Arrow out, instead of pandas objects for every group.

Theory of operation (the reasons are in docs/decisions/0008-lean-worker.md)

For `applyInPandasWithState` the JVM gives each task to a Python worker: the pickled function and a stream of Arrow record batches
with the rows and the states of the groups (lean_streams.py describes them). It expects a stream of record batches with the output
rows and the new states. How the worker computes one from the other is invisible to the JVM.

What is replaced. The worker reads a task in this order (`read_udfs` in pyspark/worker.py):
1. It makes the task's serializer, an `ApplyInPandasWithStateSerializer`.
2. It reads the offsets of the columns and unpickles the function: this runs what the function's `__reduce__` names.
3. It wraps the function for pandas, and returns the wrapped function and the serializer.
4. `main` calls `serializer.load_stream(in)`, maps the wrapped function over the result, lazily, and passes that to
   `serializer.dump_stream(…, out)`.
`use_lean_worker` is called in step 2. It finds the serializer in the calling frame of `read_udfs`, and gives this one object
another `load_stream`, which only keeps the stream, and another `dump_stream`, which reads it, calls the function and writes its
answers. The wrapped function of step 3 stands in an iterator that is never advanced.

Why that is safe.
- No class and no module attribute is replaced. The serializer belongs to one task, and the two methods are removed when the task
  has been written. A worker process that is used again, for another function or another query, starts on the stock path.
- `spark.python.use.daemon=false`, where pyspark/worker.py is `__main__`, makes no difference: nothing is looked up by module.
- PySpark's own code opens, starts and closes the streams, so an exception reaches the JVM as on the stock path; only the frames
  of its traceback differ. A `StopIteration` in the function becomes PySpark's error for it (`fail_on_stopiteration`).
- State rows are pickled with PySpark's protocol, the state properties are the same JSON, and the schemas are the same.
  tests/unit/streaming/spark_internals/test_lean_worker.py compares both paths byte for byte, tests/spark/test_lean_worker.py
  does so on streams of a real JVM. Each path continues a checkpoint of the other.
- One thing differs: a batch is also written when it is large (`BATCH_BYTES`), which the JVM allows.

Tried with PySpark 4.2.0. Any other version takes the stock path, which gives the same results; `why_off` says so in the driver's
log before anything runs. So does a PySpark that lacks a name which lean_task.py imports: PySpark's master has removed
`ApplyInPandasWithStateSerializer`. A worker also takes the stock path when the function is unpickled outside `read_udfs` (tests,
the driver), with Spark's UDF profiler, and with Arrow's large types. With `engine.lean_worker = false` no worker is lean.
"""

import sys
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import pyspark

if TYPE_CHECKING:
    from streaming.spark_internals.lean_streams import LeanFunction, RowFormat

TRIED_VERSIONS: Final = frozenset(("4.2.0",))


def why_off() -> str | None:
    """Returns why this PySpark gets the stock path, None if it gets the lean one."""
    if pyspark.__version__ not in TRIED_VERSIONS:
        return f"PySpark {pyspark.__version__} was not tried: {', '.join(sorted(TRIED_VERSIONS))}"
    try:
        from streaming.spark_internals import lean_task as lean_task
    except ImportError as error:
        return f"PySpark {pyspark.__version__} lacks what the lean worker replaces: {error}"
    return None


def use_lean_worker(function: "LeanFunction", *, value_column: int, row_format: "RowFormat") -> bool:
    """Makes the task that this worker reads right now call `function`. The unpickling of the stock function calls this.

    Args:
        value_column: The position of the binary column among the columns of the stock function's frames.
        row_format: Turns output rows into the Arrow columns that Spark was told to expect.

    Returns:
        False, with nothing changed, where the stock path has to run. The worker then writes the reason to its standard error,
        once.
    """
    task = _task_being_read()
    if task is None:
        return False
    reason = why_off()
    if reason is None:
        from streaming.spark_internals.lean_task import replace_serializer_methods

        reason = replace_serializer_methods(task, function, value_column, row_format)
    if reason is not None:
        _say(reason)
    return reason is None


def _task_being_read() -> dict[str, Any] | None:
    """Returns the local variables of `read_single_udf` and `read_udfs` that matter here; None outside of them."""
    found: dict[str, Any] = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name
        if name == "read_single_udf":
            found["args_offsets"] = frame.f_locals.get("args_offsets")
        elif name == "read_udfs":
            return found | {name: frame.f_locals.get(name) for name in ("ser", "num_udfs", "runner_conf")}
        frame = frame.f_back
    return None


@cache
def _say(reason: str) -> None:
    sys.stderr.write(f"inflight: this Python worker takes PySpark's stock path: {reason}\n")
    sys.stderr.flush()
