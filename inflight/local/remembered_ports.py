"""Keeps the ports of `inflight up` in DATA_DIR/ports.json, so that the next start uses the same ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from inflight.local.child_process import free_port, is_free

_NAME: Final = "ports.json"


class RememberedPorts:
    """The ports that nobody has configured. Hold the lock of the data directory.

    Args:
        say: Told of a port that has to change, for people.
    """

    def __init__(self, data_dir: Path, *, say: Callable[[str], None]) -> None:
        self._path = data_dir / _NAME
        self._say = say

    def choose(self, name: str, *, preferred: int = 0) -> int:
        """Returns the port of the last start, else `preferred`, else any. Each only if it is free."""
        last = self._read().get(name)
        chosen = next((port for port in (last, preferred) if port and is_free(port)), None) or free_port()
        if last is not None and chosen != last:
            self._say(f"warning: port {last} of the last start is in use, so {name} has port {chosen} from now on")
        return chosen

    def remember(self, name: str, port: int) -> None:
        """Keeps the port for the next start."""
        found = self._read()
        if found.get(name) != port:
            self._path.write_bytes(msgspec.json.format(msgspec.json.encode({**found, name: port})) + b"\n")

    def _read(self) -> dict[str, int]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            return {}
