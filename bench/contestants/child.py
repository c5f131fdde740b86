"""A part of the load that runs as a process of its own: lines go in, lines come out. And what is written on these lines."""

import os
import select
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

import msgspec

from inflight.local.child_process import bound_to_parent

_CLOSE_S = 5.0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """To a backend: `count` messages to the devices PREFIX0 … in turn. rate: per second, 0 = as fast as it goes.

    counted: False = their payloads say no time, so that no device counts their latency. within_s: the deadline.
    """

    prefix: str
    devices: int
    count: int
    qos: int
    within_s: float
    rate: int = 0
    counted: bool = True


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """Its answer when all is acknowledged. started: time.time() before the first one. late_ms: of the one that was latest.

    cpu_s: processor time of the backend.
    """

    started: float
    late_ms: float
    cpu_s: float


class Child:
    """`python -m MODULE OPTIONS`. It dies with us, and at the latest at the end of its `with`."""

    def __init__(self, module: str, *options: str) -> None:
        self._module = module
        self._process = subprocess.Popen(
            bound_to_parent([sys.executable, "-m", module, *options]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._read = b""

    def tell(self, line: bytes = b"go") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    def line(self, within_s: float) -> bytes:
        """The next one that it prints. Raises TimeoutError; RuntimeError when it has ended."""
        assert self._process.stdout is not None
        output, deadline = self._process.stdout.fileno(), time.monotonic() + within_s
        while b"\n" not in self._read:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([output], [], [], left_s)[0]:
                raise TimeoutError(f"{self._module} has said nothing for {within_s:,.0f} s")
            data = os.read(output, 1 << 16)
            if not data:
                raise RuntimeError(f"{self._module} has ended with status {self._process.wait(_CLOSE_S)}")
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line

    def first_line(self, within_s: float) -> bytes:
        """The same, for who has not begun a `with` yet: ends it when there is none."""
        try:
            return self.line(within_s)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def send(self, order: Order) -> Sent:
        """For backends."""
        self.tell(msgspec.json.encode(order))
        return msgspec.json.decode(self.line(order.within_s + _CLOSE_S), type=Sent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            # Who waits for orders ends with its input; there is nothing to wait for when something went wrong.
            self._process.wait(0 if kind else _CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
