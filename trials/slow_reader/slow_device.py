"""A device that acknowledges nothing, one that reads all, the messages for them, and what the product says about the first."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Final, Self

from kafka import KafkaConsumer, KafkaProducer

from state.records.receipts import decode_receipt
from state.records.throttle import decode_throttle
from trials.attacks.packets import connect_kept

CLIENT_ID: Final = "slow"
READER_ID: Final = "reader0"
_PAYLOAD: Final = b"." * 200
_CONNACK_BYTES: Final = 4
_CONNECT_S: Final = 30.0
_PING_S: Final = 1.0
_PAUSE_S: Final = 0.2
_STOP_S: Final = 30.0
_NEVER: Final = 1_000_000_000
"""More messages than come."""
_BUFFER_BYTES: Final = 4_096
_READ_BYTES: Final = 65_536
_POLL_MS: Final = 200


class SlowDevice:
    """Is connected within its context, and connects again if it is disconnected. It sends PINGREQ, and no PUBACK.

    reads: False = it leaves everything behind CONNACK in the network. connections: accepted ones.
    """

    def __init__(self, address: tuple[str, int], *, reads: bool) -> None:
        self.connections = 0
        self._address, self._reads = address, reads
        self._stop = threading.Event()
        self._is_connected = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_connected.wait(_CONNECT_S), "the slow device is not connected"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(OSError):
                self._connection()
            self._stop.wait(_PAUSE_S)

    def _connection(self) -> None:
        """Runs one connection. Raises OSError when it ends."""
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            connection.settimeout(_CONNECT_S)
            connection.connect(self._address)
            connection.sendall(connect_kept(CLIENT_ID))
            connack = connection.recv(_CONNACK_BYTES, socket.MSG_WAITALL)
            if len(connack) < _CONNACK_BYTES or connack[3]:
                return
            self.connections += 1
            self._is_connected.set()
            connection.settimeout(_PING_S)
            while not self._stop.is_set():
                connection.sendall(b"\xc0\x00")
                began_s = time.monotonic()
                while self._reads and time.monotonic() < began_s + _PING_S:
                    with contextlib.suppress(TimeoutError):
                        if not connection.recv(_READ_BYTES):
                            return
                self._stop.wait(began_s + _PING_S - time.monotonic())


class ReadingDevice:
    """Is connected within its context in a process of its own, reads everything and acknowledges it."""

    def __init__(self, address: tuple[str, int], patience_s: float) -> None:
        """patience_s: It disconnects after so long."""
        host, port = address
        words = [
            "--host",
            host,
            "--port",
            str(port),
            "--devices",
            "1",
            "--prefix",
            READER_ID.removesuffix("0"),
            "--timeout",
            str(patience_s),
        ]
        self._command = [sys.executable, "-m", "bench.devices", *words, "--expect", str(_NEVER)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the device that reads is not connected"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()


class SteadyBackend:
    """Sends to a client at a steady rate within its context, whatever `inflight.throttle` says."""

    def __init__(self, bootstrap_servers: str, client_id: str, rate_per_s: float) -> None:
        self.sent = 0
        self._key = client_id.encode()
        self._every_s = 1 / rate_per_s
        self._producer = KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all", linger_ms=5)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(_STOP_S)
        self._producer.close(_STOP_S)

    def _send(self) -> None:
        started_s, headers = time.monotonic(), [("mqtt-topic", b"slow"), ("mqtt-qos", b"1")]
        while not self._stop.wait(max(0.0, started_s + self.sent * self._every_s - time.monotonic())):
            self._producer.send("inflight.messages", _PAYLOAD, key=self._key, headers=headers)
            self.sent += 1


class Said:
    """Reads what the product says about the slow device.

    outcomes: final receipts. is_throttled, is_progressing: the last word.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self.outcomes: Counter[str] = Counter()
        self.is_throttled = self.is_progressing = False
        topics = ("inflight.receipts", "inflight.throttle")
        self._consumer = KafkaConsumer(
            *topics, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest", enable_auto_commit=False
        )
        self._seen: set[str] = set()

    def read(self) -> None:
        """Reads what is there now."""
        while found := self._consumer.poll(_POLL_MS):
            for records in found.values():
                for record in records:
                    if record.key != CLIENT_ID.encode():
                        continue
                    if record.topic == "inflight.throttle":
                        self.is_throttled = record.value is not None
                        self.is_progressing = record.value is not None and decode_throttle(record.value).is_progressing
                        continue
                    receipt = decode_receipt(record.value)
                    if receipt.final and receipt.message_id not in self._seen:
                        self._seen.add(receipt.message_id)
                        self.outcomes[receipt.outcome] += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._consumer.close()
