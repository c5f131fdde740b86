"""An MQTT 5 device on a bare socket that answers each PUBLISH as a test says."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

from tests.integration.up.wire_device import PUBACK, PUBCOMP, PUBREC, PUBREL, Received, WireDevice
from tests.support.waiting import wait_until

Answer = Callable[[str, int], int | None]
"""(topic, how often this device has seen the payload, from 1) → reason code of the PUBACK or PUBREC, None = no answer."""


class AnsweringDevice(WireDevice):
    """Connected for the length of a `with` block, with a session that is kept.

    received: payloads of all PUBLISH packets; seen: more about each of them.
    """

    def __init__(self, host: str, port: int, client_id: str, answer: Answer) -> None:
        super().__init__((host, port), client_id, 5)
        self.received: list[bytes] = []
        self.seen: list[Received] = []
        self._answer = answer
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.socket.settimeout(None)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.send(b"\xe0\x00")
            self.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self.socket.close()

    def await_count(self, count: int) -> None:
        """Returns when `count` PUBLISH packets have come. Raises AssertionError."""
        wait_until(lambda: len(self.received) >= count, lambda: f"{count} packets; {len(self.received)}: {self.received}")

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.packet():
                if data[0] == PUBREL:
                    self.send(bytes((PUBCOMP, 2)) + data[2:4])
                elif data[0] >> 4 == 3:
                    self._publish(self.parse(data))

    def _publish(self, message: Received) -> None:
        self.seen.append(message)
        self.received.append(message.payload)
        reason_code = self._answer(message.topic, self.received.count(message.payload))
        if message.qos and reason_code is not None:
            self.answer(PUBACK if message.qos == 1 else PUBREC, message, reason_code)
