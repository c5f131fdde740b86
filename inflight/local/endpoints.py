"""Reads and writes DATA_DIR/endpoints.json, by which other processes find a running `inflight up` and its processes."""

import os
from pathlib import Path
from typing import Final, Self

import msgspec

_NAME: Final = "endpoints.json"


class Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file.

    mqtt, kafka: host:port.
    pids: by name (`up`, `kafka`, `engine`, `gateway`, `console`); absent while a process is being restarted.
    metrics: host:port of the processes that serve metrics, by name.
    console: the address of the page.
    """

    mqtt: str = ""
    kafka: str = ""
    pids: dict[str, int] = {}
    metrics: dict[str, str] = {}
    console: str = ""

    @classmethod
    def read(cls, data_dir: Path) -> Self:
        """Reads what runs on this data directory; returns an empty value if nothing does, or if `up` was killed."""
        try:
            found = msgspec.json.decode((data_dir / _NAME).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return cls()
        return found if _is_alive(found.pids.get("up")) else cls()

    def write(self, data_dir: Path) -> None:
        """Replaces the file in one step: a reader sees the old or the new one."""
        temporary = data_dir / f"{_NAME}.new"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        temporary.replace(data_dir / _NAME)

    @staticmethod
    def remove(data_dir: Path) -> None:
        (data_dir / _NAME).unlink(missing_ok=True)


def _is_alive(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
