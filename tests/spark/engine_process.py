"""The engine as a process of its own, for tests that kill it: `python -m tests.spark.engine_process SETTINGS_AS_JSON`.

Prints `ready` when devices would get answers, and stops when its standard input is closed.
"""

import json
import sys
import threading

from streaming.job import run_engine
from streaming.settings import Settings
from streaming.topics import ensure_topics


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    ensure_topics(settings)
    stop = threading.Event()

    def await_end_of_input() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=await_end_of_input, daemon=True).start()
    run_engine(settings, on_ready=lambda: print("ready", flush=True), stop=stop)


if __name__ == "__main__":
    main()
