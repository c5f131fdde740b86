"""Shares a server among test processes: the first that needs it starts it, and stops it when it is unused."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

T = TypeVar("T")


@dataclass(frozen=True)
class SharedKafka:
    """The broker that tests share (the fixture `kafka`)."""

    bootstrap_servers: str


_CHECK_EVERY_S = 0.2
_UNUSED_S = 2.0
"""A server is stopped when nobody has used it for so long: between two files of tests nobody uses it either."""
_pool = ThreadPoolExecutor(thread_name_prefix="stops what is shared")
_stopping: "list[Future[None]]" = []


@contextmanager
def shared(
    factory: pytest.TempPathFactory, name: str, addresses: type[T], server: Callable[[Path], tuple[T, Callable[[], None]]]
) -> Iterator[T]:
    """Yields where the server listens. The process that started it stops it in the background, beside its tests.

    Args:
        addresses: The dataclass of what is yielded.
        server: Starts the server in a new directory; returns its addresses and how to stop it.
    """
    own = factory.getbasetemp()
    directory = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    addresses_file, starting, users = (directory / f"{name}.{what}" for what in ("addresses", "starting", "users"))
    stop: Callable[[], None] | None = None
    with ExitStack() as use:
        with _locked(starting, fcntl.LOCK_EX):
            if not addresses_file.exists():
                where, stop = server(factory.mktemp(name))
                addresses_file.write_bytes(msgspec.json.encode(where))
            use.enter_context(_locked(users, fcntl.LOCK_SH))
        yield msgspec.json.decode(addresses_file.read_bytes(), type=addresses)
    if stop is not None:
        _stopping.append(_pool.submit(_stop_unused, addresses_file, starting, users, stop))


def await_stopped() -> None:
    """Returns when all that this process has started is stopped. Raises what stopping raised."""
    while _stopping:
        _stopping.pop().result()


def _stop_unused(addresses_file: Path, starting: Path, users: Path, stop: Callable[[], None]) -> None:
    unused_since_s = time.monotonic()
    while True:
        with _locked(starting, fcntl.LOCK_EX):  # no other process begins to use it meanwhile
            try:
                with _locked(users, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    if time.monotonic() - unused_since_s >= _UNUSED_S:
                        addresses_file.unlink()
                        return stop()
            except BlockingIOError:
                unused_since_s = time.monotonic()
        time.sleep(_CHECK_EVERY_S)


@contextmanager
def _locked(file: Path, how: int) -> Iterator[None]:
    with file.open("a") as opened:
        fcntl.flock(opened, how)
        yield
