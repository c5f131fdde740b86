"""Keeps in DATA_DIR/engines where each engine of a data directory serves its metrics: a file for each process, named by its id.

Two engines with one configuration cannot serve on the same port, and either of them may work. A killed engine leaves its file
behind; it is ignored, as are those of other machines and containers.
"""

import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from os import getpid
from pathlib import Path
from typing import Final

import msgspec
import structlog

from inflight.running_up import is_alive

_FOLDER: Final = "engines"
_SERVED: Final = " metrics="
_log: Final = structlog.get_logger(__name__)


class _Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file.

    Attributes:
        may_wait: It waits while another engine works (`--standby`).
    """

    machine: str
    metrics: str
    may_wait: bool = False


@contextmanager
def announced_engine(data_dir: Path, served: str, *, may_wait: bool = False) -> Iterator[None]:
    """Announces the engine of this process until the end of the block.

    Args:
        served: As `serving_metrics` yields it.
        may_wait: It waits while another engine works.
    """
    file = data_dir / _FOLDER / f"{getpid()}.json"
    address = served.removeprefix(_SERVED)
    if address:
        try:
            _remove_killed(data_dir)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(
                msgspec.json.encode(_Engine(machine=socket.gethostname(), metrics=address, may_wait=may_wait)) + b"\n"
            )
        except OSError as error:
            _log.warning("engine_not_announced", error=str(error), action="give `inflight status` its address: --metrics")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def engine_addresses(data_dir: Path) -> list[str]:
    """Returns HOST:PORT of each engine that runs on the data directory and this machine, and serves metrics."""
    return [_reached(engine.metrics) for file, engine in _of_this_machine(data_dir) if is_alive(int(file.stem))]


def standby_addresses(data_dir: Path) -> frozenset[str]:
    """Returns those of `engine_addresses` that wait while another engine works."""
    return frozenset(
        _reached(engine.metrics) for file, engine in _of_this_machine(data_dir) if engine.may_wait and is_alive(int(file.stem))
    )


def reachable(host: str) -> str:
    """Returns where a process of this machine is reached: one that listens on all addresses by loopback."""
    return "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104  # nosec B104


def _reached(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{reachable(host)}:{port}"


def _remove_killed(data_dir: Path) -> None:
    for file, _ in list(_of_this_machine(data_dir)):
        if not is_alive(int(file.stem)):
            file.unlink(missing_ok=True)


def _of_this_machine(data_dir: Path) -> Iterator[tuple[Path, _Engine]]:
    for file in sorted(data_dir.glob(f"{_FOLDER}/*.json")):
        try:
            engine = msgspec.json.decode(file.read_bytes(), type=_Engine)
        except (OSError, msgspec.DecodeError):
            continue  # it is being written, or removed
        if engine.machine == socket.gethostname() and file.stem.isdecimal():
            yield file, engine
