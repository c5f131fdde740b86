"""Reads and writes DATA_DIR/endpoints.json, by which other processes find a running `inflight up` and its processes."""

from pathlib import Path
from typing import Self

import msgspec

from inflight.running_up import ENDPOINTS_FILE, is_alive


class Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file.

    Attributes:
        mqtt, kafka: `host:port`.
        listeners: Addresses of [[listeners]], with commas between them.
        pids: By name (`up`, `kafka`, `engine`, `gateway`, `console`); absent while a process is being restarted.
        metrics: `host:port` of the processes that serve metrics, by name.
        console: The address of the page.
        config, overrides: The --config and --set of `inflight up`, for commands on the same data directory.
    """

    mqtt: str = ""
    listeners: str = ""
    kafka: str = ""
    pids: dict[str, int] = {}
    metrics: dict[str, str] = {}
    console: str = ""
    config: str = ""
    overrides: list[str] = []

    @classmethod
    def read(cls, data_dir: Path) -> Self:
        """Reads what runs on this data directory; returns an empty value if nothing does, or if `up` was killed."""
        try:
            found = msgspec.json.decode((data_dir / ENDPOINTS_FILE).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return cls()
        return found if is_alive(found.pids.get("up")) else cls()

    def write(self, data_dir: Path) -> None:
        """Replaces the file in one step: a reader sees the old or the new one."""
        temporary = data_dir / f"{ENDPOINTS_FILE}.new"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        temporary.replace(data_dir / ENDPOINTS_FILE)

    @staticmethod
    def remove(data_dir: Path) -> None:
        (data_dir / ENDPOINTS_FILE).unlink(missing_ok=True)
