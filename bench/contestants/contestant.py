"""Interface of a contestant."""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Protocol, Self

import psutil

from bench.contestants.child import Child

TOPIC = "bench"
"""First level of the topic of a message to a device; the second one is the client id."""
PREFIX = "device-"
"""Prefix of the client ids of all devices."""


class Uplink(Protocol):
    """Receiver of the devices' publications. It is made before they are published, one for each measurement."""

    def await_all(self, within_s: float) -> dict[str, float]:
        """Returns the CPU seconds of reading when all publications are there. Raises TimeoutError, RuntimeError."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class Contestant(Protocol):
    """Runs within its `with`, with its own data.

    title: for the tables. subscribe: the topic filter that its devices need, %c being the client id; "" = none.
    has_shared_subscriptions: `$share/GROUP/FILTER`. mqtt: host and port. has_standby: a second process can wait beside the one
    that holds the sessions. keeps_sessions: they survive SIGKILL.
    """

    title: ClassVar[str]
    subscribe: ClassVar[str]
    has_shared_subscriptions: ClassVar[bool]
    has_standby: ClassVar[bool]
    keeps_sessions: ClassVar[bool]

    def __init__(self, directory: Path, settings: list[str], *, standby: bool = False) -> None:
        """directory: exists, is empty, and is deleted afterwards. settings: `key=value` for Inflight.

        standby: a second process waits, once it runs. Allowed only if `has_standby`.
        """

    @staticmethod
    def version() -> str:
        """Raises MissingPrerequisite if it is not installed."""

    @property
    def mqtt(self) -> tuple[str, int]: ...

    def processes(self) -> Iterable[tuple[str, psutil.Process]]:
        """Returns all running processes, each with the name under which its processor time counts."""

    def backend(self) -> Child:
        """Starts a process that reads `Order`s and answers with `Sent`. Its first line reports that it is ready."""

    def uplink(self, count: int) -> Uplink:
        """count: the number of expected publications."""

    def await_rest(self, within_s: float) -> None:
        """Returns when it has no work left from earlier messages. Raises TimeoutError."""

    def kill(self) -> None:
        """Sends SIGKILL to what holds the sessions, which is started again at once with its data. Does not wait for it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
