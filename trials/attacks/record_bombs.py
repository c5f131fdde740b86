"""Records that hold far more than they take in Kafka's log, written one after the other, and how long others wait meanwhile.

Each bomb is written when the one before it has become a dead letter. A device of MQTT 3.1.1 connects with one new client id
after the other, without Clean Start: only the engine can accept it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from secrets import token_hex
from threading import Event
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from trials.attacks import packets
from trials.attacks.device import Device, Refused

_MESSAGES: Final = "inflight.messages"
_EVENTS: Final = "inflight.events"
_DEAD_LETTERS: Final = "inflight.dead-letters"
_KEY: Final = b"bomb"
_MIB: Final = 1 << 20
_LAST_MS: Final = 2**63 - 1
_POLL_MS: Final = 100
_PAUSE_S: Final = 0.1
_ANSWER_S: Final = 30.0

Done = Counter[str]


@dataclass(frozen=True, kw_only=True)
class Bomb:
    """A record. make: its value and headers, made when they are needed."""

    what: str
    topic: str
    make: Callable[[], tuple[bytes, list[tuple[str, bytes]]]]
    timestamp_ms: int | None = None


def bombs(size: int) -> Iterator[Bomb]:
    """Yields the kinds. size: of the largest, in MiB."""
    for topic in (_MESSAGES, _EVENTS):
        yield Bomb(what=f"{size} MiB of zeros", topic=topic, make=lambda: (bytes(size * _MIB), []))
    yield Bomb(what=f"{size // 3} MiB of zeros", topic=_MESSAGES, make=lambda: (bytes(size // 3 * _MIB), []))
    yield Bomb(what=f"a header of {size // 3} MiB", topic=_MESSAGES, make=lambda: (b"", [("h", bytes(size // 3 * _MIB))]))
    yield Bomb(what="1,500,000 empty headers", topic=_MESSAGES, make=lambda: (b"", [("", b"")] * 1_500_000))
    yield Bomb(what="the last timestamp", topic=_MESSAGES, make=lambda: (b"", []), timestamp_ms=_LAST_MS)


class RecordBombs:
    """The writer, on a thread, and the device, on the loop. Both count in `done`, waits in ms by the bomb of the moment."""

    def __init__(self, address: tuple[str, int], done: Done) -> None:
        self._address = address
        self._done = done
        self._bomb = "no bomb"

    async def connect_again_and_again(self) -> None:
        while True:
            bomb, started_s = self._bomb, time.monotonic()
            try:
                async with await Device.open(self._address, packets.connect_kept(token_hex(8))):
                    self._wait(f"ms, the longest CONNECT: {bomb}", started_s)
            except (Refused, EOFError, OSError):
                self._done["CONNECTs in vain"] += 1
            await asyncio.sleep(_PAUSE_S)

    def write(self, bootstrap_servers: str, size: int, stop: Event) -> None:
        """Writes until all are written or `stop` is set."""
        _allow_any_time(bootstrap_servers)
        with (
            closing(
                KafkaProducer(bootstrap_servers=bootstrap_servers, compression_type="gzip", max_request_size=1 << 30)
            ) as producer,
            closing(_reader(bootstrap_servers)) as letters,
        ):
            for bomb in bombs(size):
                value, headers = bomb.make()
                self._bomb = f"{bomb.what}, {bomb.topic}"
                sent = producer.send(bomb.topic, value, _KEY, headers=headers, timestamp_ms=bomb.timestamp_ms)
                sent.get(_ANSWER_S)
                started_s = time.monotonic()
                if not _dead_letter(letters, stop):
                    return
                self._done["bombs"] += 1
                self._wait(f"ms until the dead letter: {self._bomb}", started_s)
                self._bomb = "between bombs"

    def _wait(self, what: str, started_s: float) -> None:
        self._done[what] = max(self._done[what], int(1_000 * (time.monotonic() - started_s)))


def _allow_any_time(bootstrap_servers: str) -> None:
    config = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(_LAST_MS)}
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, _MESSAGES, config)])


def _reader(bootstrap_servers: str) -> Any:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, group_id=None, enable_auto_commit=False)
    partitions = [TopicPartition(_DEAD_LETTERS, number) for number in sorted(consumer.partitions_for_topic(_DEAD_LETTERS) or ())]
    consumer.assign(partitions)
    consumer.seek_to_end(*partitions)
    for partition in partitions:
        consumer.position(partition)
    return consumer


def _dead_letter(letters: Any, stop: Event) -> bool:
    """Returns True when a dead letter of ours has come, False at `stop`."""
    while not stop.is_set():
        for records in letters.poll(timeout_ms=_POLL_MS).values():
            if any(record.key == _KEY for record in records):
                return True
    return False
