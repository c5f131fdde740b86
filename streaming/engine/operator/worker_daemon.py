"""Forks the Python workers of Spark, with everything that a worker needs imported once: `python -m` this module.

A worker that imports the session, Arrow and pandas itself takes half a second, on a busy machine more than a second, in the
middle of a micro-batch. Spark ends workers that were idle for a minute, so that would happen again and again
(docs/decisions/0031).
"""

import gc
import os

from streaming.engine.leases import connections as connections
from streaming.engine.operator import by_batch as by_batch
from streaming.spark_internals.jvm import serve_python_workers
from streaming.spark_internals.lean_worker import why_off

if __name__ == "__main__":
    os.umask(0o077)  # whoever may write to the daemon's socket can give it work
    why_off()  # imports the path of the lean worker
    gc.collect()
    gc.freeze()  # keeps the pages that the workers share unmodified
    serve_python_workers()
