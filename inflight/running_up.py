"""Finds the Kafka of an `inflight up` that runs on this machine, for a `Producer` without an address."""

import json
import os
from pathlib import Path
from typing import Final

from state.errors import InflightError

ENDPOINTS_FILE: Final = "endpoints.json"
"""In the data directory; inflight/local/endpoints.py writes it."""
_DATA_DIR_VARIABLE: Final = "INFLIGHT__ENGINE__DATA_DIR"
_DATA_DIR: Final = "var/inflight"


class NoRunningSystem(InflightError):
    """A Producer was made without an address, and no `inflight up` runs on the data directory."""


def kafka_of_running_up() -> str:
    """Returns `host:port`. Raises NoRunningSystem.

    The data directory is $INFLIGHT__ENGINE__DATA_DIR, else `var/inflight` below the working directory.
    """
    data_dir = Path(os.environ.get(_DATA_DIR_VARIABLE) or _DATA_DIR).absolute()
    try:
        found = json.loads((data_dir / ENDPOINTS_FILE).read_bytes())
        if is_alive(found["pids"]["up"]) and found["kafka"]:
            return str(found["kafka"])
    except (OSError, ValueError, TypeError, KeyError):
        pass  # nothing runs there
    raise NoRunningSystem(
        f"no `inflight up` runs on {data_dir}: start one in {Path.cwd()}, name its data directory in {_DATA_DIR_VARIABLE}, or "
        'give the address of Kafka, for example Producer("127.0.0.1:9092")'
    )


def is_alive(pid: int | None) -> bool:
    """Returns True if the process exists."""
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
