"""PySpark's daemon, from which Python workers are forked, with all that a worker needs imported once: `python -m` this module.

A worker that has to import the session, Arrow and pandas itself takes half a second for that, on a busy machine more than a whole
one, in the middle of a micro-batch. Spark ends workers that had nothing to do for a minute, so it happens again and again
(docs/decisions/0034).
"""

import gc
import os

from pyspark import daemon

from streaming.engine.operator import by_batch as by_batch

if __name__ == "__main__":
    os.umask(0o077)  # whoever may write to the daemon's socket may give it work
    gc.collect()
    gc.freeze()  # what is shared with the workers stays shared
    daemon.manager()
