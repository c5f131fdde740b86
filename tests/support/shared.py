"""One server for the tests of several processes: the first that asks starts it, and stops it when nobody uses it any more."""

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


_LOOK_EVERY_S = 0.2
_UNUSED_S = 2.0
"""For so long nobody has it before it is stopped: between two files of tests nobody has it either."""
_pool = ThreadPoolExecutor(thread_name_prefix="stops what is shared")
_stopping: "list[Future[None]]" = []


@contextmanager
def shared(
    factory: pytest.TempPathFactory, name: str, addresses: type[T], server: Callable[[Path], tuple[T, Callable[[], None]]]
) -> Iterator[T]:
    """Where it listens. server: starts it in a new directory, and returns that and how to stop it. addresses: a dataclass.

    It is stopped by the process that started it, in the background: that process goes on with its tests (`await_stopped`).
    """
    own = factory.getbasetemp()
    directory = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    told, starting, users = (directory / f"{name}.{what}" for what in ("addresses", "starting", "users"))
    stop: Callable[[], None] | None = None
    with ExitStack() as use:
        with _locked(starting, fcntl.LOCK_EX):
            if not told.exists():
                where, stop = server(factory.mktemp(name))
                told.write_bytes(msgspec.json.encode(where))
            use.enter_context(_locked(users, fcntl.LOCK_SH))
        yield msgspec.json.decode(told.read_bytes(), type=addresses)
    if stop is not None:
        _stopping.append(_pool.submit(_stop_unused, told, starting, users, stop))


def await_stopped() -> None:
    """Until all that this process has started is stopped. Raises what stopping raised."""
    while _stopping:
        _stopping.pop().result()


def _stop_unused(told: Path, starting: Path, users: Path, stop: Callable[[], None]) -> None:
    unused_since_s = time.monotonic()
    while True:
        with _locked(starting, fcntl.LOCK_EX):  # nobody begins to use it meanwhile
            try:
                with _locked(users, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    if time.monotonic() - unused_since_s >= _UNUSED_S:
                        told.unlink()
                        return stop()
            except BlockingIOError:
                unused_since_s = time.monotonic()
        time.sleep(_LOOK_EVERY_S)


@contextmanager
def _locked(file: Path, how: int) -> Iterator[None]:
    with file.open("a") as opened:
        fcntl.flock(opened, how)
        yield
