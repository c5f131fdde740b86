"""Runs a part of the load as a process of its own. Lines are its input and its output; this module has their formats."""

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
    """An order to a backend: `count` messages to the devices PREFIX0 … in turn.

    rate: per second, 0 = as fast as possible. counted: False = payloads without a time, so that no device counts their latency.
    within_s: the deadline. again: the contestant was killed, so a backend without a client library connects anew.
    """

    prefix: str
    devices: int
    count: int
    qos: int
    within_s: float
    rate: int = 0
    counted: bool = True
    again: bool = False


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's answer when all messages are acknowledged.

    started: time.time() before the first one. late_ms: the delay of the latest one. cpu_s: processor time of the backend.
    """

    started: float
    late_ms: float
    cpu_s: float


class Child:
    """Runs `python -m MODULE OPTIONS`. It ends with this process, and at the latest at the end of its `with`."""

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
        """Returns its next line. Raises TimeoutError, or RuntimeError when it has ended."""
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
        """Returns its first line before a `with` begins. Ends the process if there is no line."""
        try:
            return self.line(within_s)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def send(self, order: Order) -> Sent:
        """Sends an order to a backend, and returns its answer."""
        self.begin(order)
        return self.finish(order)

    def begin(self, order: Order) -> None:
        """Sends an order to a backend. Call `finish` for its answer."""
        self.tell(msgspec.json.encode(order))

    def finish(self, order: Order) -> Sent:
        return msgspec.json.decode(self.line(order.within_s + _CLOSE_S), type=Sent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            # Ends with its input; after an error there is nothing to wait for.
            self._process.wait(0 if kind else _CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
