"""Simulates gateways and devices without sockets: reads `commands`, measures, and acknowledges as devices would.

It is a process of its own, so that it does not share an interpreter with the sender.
"""

import multiprocessing
import os
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from bench.devices import percentile
from bench.sender import Sender
from state.commands import AcceptConnection, SendPublish
from state.events import PubAckReceived
from state.records.commands import decode_command_batch
from state.records.events import MAX_EVENTS_IN_RECORD, encode_event, joined
from state.settings import Topics

COUNTED_BURSTS = 3
"""Number of last bursts whose median counts; the earlier ones warm the JVM up."""
STAMP = struct.Struct("!Q")
_AT_ONCE, _POLL_S, _LONGEST_S = 500, 0.02, 30.0


def stamped(size: int = 64) -> bytes:
    """Returns a payload with the current time."""
    return STAMP.pack(time.time_ns()) + b"." * (size - 8)


def unstamped(size: int = 64) -> bytes:
    """Returns a payload without a time, whose latency is not counted."""
    return bytes(size)


class SimulatedDevices:
    """Handle of the process. trivial: the records are those of bench/trivial.py."""

    def __init__(self, bootstrap_servers: str, topics: Topics, *, trivial: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_run, args=(bootstrap_servers, topics, trivial, other), daemon=True)
        self._process.start()
        assert self._pipe.recv() == "ready"

    def reset(self) -> None:
        """Resets the counts."""
        self._pipe.send("reset")
        self._pipe.recv()

    def counts(self) -> dict[str, Any]:
        """Returns accepted, received (a resend counts once), p50_ms, p99_ms, first, last (time.time() of a message)."""
        self._pipe.send("counts")
        return self._pipe.recv()

    def await_count(self, key: str, count: int, timeout_s: float = 120.0) -> dict[str, Any]:
        """Raises TimeoutError if `key` has not reached `count` in time."""
        deadline = time.monotonic() + timeout_s
        while (counts := self.counts())[key] < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{key}: {counts[key]} of {count} within {timeout_s} s")
            time.sleep(0.05)
        return counts

    def close(self) -> None:
        self._pipe.send("stop")
        self._process.join(10)


def _run(bootstrap_servers: str, topics: Topics, trivial: bool, pipe: Connection) -> None:
    consumer = _consumer(bootstrap_servers, topics.commands)
    sender = Sender(bootstrap_servers, linger_ms=5)
    pipe.send("ready")
    accepted, latencies, first, last = 0, [], 0.0, 0.0
    while True:
        while pipe.poll():
            order = pipe.recv()
            if order == "stop":
                sender.flush()
                consumer.close()
                return
            if order == "reset":
                accepted, latencies, first, last = 0, [], 0.0, 0.0
                pipe.send(None)
            else:
                p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
                pipe.send(
                    {"accepted": accepted, "received": len(latencies), "p50_ms": p50, "p99_ms": p99, "first": first, "last": last}
                )
        for record in consumer.consume(_AT_ONCE, _POLL_S):
            if record.error():
                raise KafkaException(record.error())
            now_ns = time.time_ns()
            acknowledgements = []
            if trivial:
                for payload in _parts(record.value()):
                    latencies.append((now_ns - STAMP.unpack_from(payload)[0]) / 1e6)
                    acknowledgements.append(PubAckReceived(connection_id=1, packet_id=1))
            else:
                for command in decode_command_batch(record.value()).commands:
                    if isinstance(command, SendPublish):
                        if not command.dup:
                            latencies.append((now_ns - STAMP.unpack_from(command.payload)[0]) / 1e6)
                        acknowledgements.append(PubAckReceived(connection_id=1, packet_id=command.packet_id))
                    elif isinstance(command, AcceptConnection):
                        accepted += 1
            # Written as by a gateway (docs/decisions/0030).
            values = [encode_event(acknowledgement) for acknowledgement in acknowledgements]
            for start in range(0, len(values), MAX_EVENTS_IN_RECORD):
                part = values[start : start + MAX_EVENTS_IN_RECORD]
                sender.send(topics.events, joined(part) if len(part) > 1 else part[0], key=record.key())
            last = now_ns / 1e9
            first = first or last


def _consumer(bootstrap_servers: str, topic: str) -> Consumer:
    """Reads all of the topic from its beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"bench-{os.getpid()}",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
            "enable.metrics.push": False,
        }
    )
    partitions = consumer.list_topics(topic, timeout=_LONGEST_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    return consumer


def _parts(value: bytes):
    start = 0
    while start < len(value):
        length = int.from_bytes(value[start : start + 4])
        yield value[start + 4 : start + 4 + length]
        start += 4 + length
