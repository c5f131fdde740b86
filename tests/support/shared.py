"""One server for the tests of several processes: the first that asks starts it, and stops it when the last one has ended."""

import fcntl
import os
from collections.abc import Callable, Iterator
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


@contextmanager
def shared(
    factory: pytest.TempPathFactory, name: str, addresses: type[T], server: Callable[[Path], tuple[T, Callable[[], None]]]
) -> Iterator[T]:
    """Where it listens. server: starts it in a new directory, and returns that and how to stop it. addresses: a dataclass."""
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
        with _locked(starting, fcntl.LOCK_EX), _locked(users, fcntl.LOCK_EX):
            told.unlink()
            stop()


@contextmanager
def _locked(file: Path, how: int) -> Iterator[None]:
    with file.open("a") as opened:
        fcntl.flock(opened, how)
        yield
