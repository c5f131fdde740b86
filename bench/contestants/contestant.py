"""What the run asks of each contestant."""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Protocol, Self

import psutil

from bench.contestants.child import Child

TOPIC = "bench"
"""First level of the topic of a message to a device; the second one is the client id."""
PREFIX = "device-"
"""Of the client ids of all devices."""


class Uplink(Protocol):
    """Where the publications of devices have to come. Made before they are published; one for each measurement."""

    def await_all(self, within_s: float) -> dict[str, float]:
        """Returns when all are there: CPU seconds that were spent on reading them. Raises TimeoutError, RuntimeError."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class Contestant(Protocol):
    """Runs within its `with`, on data of its own.

    title: for people. subscribe: the topic filter that its devices need, %c being the client id; "" = none. mqtt: host and port.
    """

    title: ClassVar[str]
    subscribe: ClassVar[str]

    def __init__(self, directory: Path, settings: list[str]) -> None:
        """directory: exists, is empty, and goes away afterwards. settings: `key=value` for Inflight."""

    @staticmethod
    def version() -> str:
        """Raises MissingPrerequisite when it is not installed."""

    @property
    def mqtt(self) -> tuple[str, int]: ...

    def processes(self) -> Iterable[tuple[str, psutil.Process]]:
        """All that run now, with the name under which the processor time of each counts."""

    def backend(self) -> Child:
        """A new process that takes `Order`s and answers with `Sent`; its first line says that it is ready."""

    def uplink(self, count: int) -> Uplink:
        """count: how many publications have to come."""

    def await_rest(self, within_s: float) -> None:
        """Returns when it has nothing left to do for what was sent before. Raises TimeoutError."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
