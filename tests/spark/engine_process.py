"""The engine as a process of its own, for tests that kill it: `python -m tests.spark.engine_process SETTINGS_AS_JSON OPTIONS`.

OPTIONS: `standby`, `accept-loss`, or none.

Prints `ready` when devices would get answers, and `standby` when it waits for another engine to be gone. The log goes to standard
error. Stops when its standard input is closed.
"""

import json
import sys
import threading

import structlog

from inflight.local.spark_jars import spark_jars
from streaming.config.settings import Settings
from streaming.engine.lifecycle.standby import Standby
from streaming.engine.run import run_engine
from streaming.topics import ensure_topics


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    settings = Settings(**json.loads(sys.argv[1]))
    ensure_topics(settings)
    stop = threading.Event()

    def await_end_of_input() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=await_end_of_input, daemon=True).start()
    options = sys.argv[2:]
    run_engine(
        settings,
        jars=spark_jars(),
        on_ready=lambda: print("ready", flush=True),
        stop=stop,
        standby=Standby(on_wait=lambda: print("standby", flush=True)) if "standby" in options else None,
        accept_loss="accept-loss" in options,
    )


if __name__ == "__main__":
    main()
