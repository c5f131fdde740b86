"""The engine asks everybody to wait while it is behind, its state too large or its disk full: live, seen by a Producer.

Two engines, one after the other on the same data; what was left with the first is delivered by the second.
Judged by what was recorded: the engine's micro-batches, the records of `inflight.throttle`, and the attempts of the sends.
"""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka import KafkaProducer
from prometheus_client import CollectorRegistry

from inflight.demo.up import UpProcess
from inflight.producer import Cause, Producer, SendFailed, SendResult
from state.settings import BackoffSettings
from streaming.config.units import format_size
from streaming.engine.progress import PROGRESS_FILE, BatchProgress, last_progress
from tests.integration.up.topics_of_up import records_of
from tests.integration.up.wire_device import PUBACK, Backend, WireDevice, acknowledgement
from tests.support.micro_batches import await_batches
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults

LAG_HIGH, LAG_LOW = 1_000, 300
PER_BATCH = 100
"""Records in a micro-batch: a lag takes several of them to shrink from the high to the low watermark."""
FLOOD = 2_000
SLEEPER = "sleeper"
BACKOFF = BackoffSettings(initial_ms=100, max_ms=400)
CLOCK_MS = 2
"""Two roundings of one machine's clock."""


class Disk:
    """A ballast that takes room on the disk of the checkpoint without writing it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ballast"
        free = shutil.disk_usage(directory).free
        self._size = min(free // 2, 8 << 30)  # so much that what other tests write meanwhile is little
        self.low = free - self._size * 6 // 10
        self.high = free - self._size * 3 // 10

    def fill(self) -> None:
        with self._path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, self._size)

    def leave_between_the_marks(self) -> None:
        with self._path.open("rb+") as file:
            file.truncate(self._size * 45 // 100)

    def empty(self) -> None:
        self._path.unlink()


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    return Disk(tmp_path_factory.mktemp("disk"))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes the data directory of both engines of this module: the second engine continues from the first one's data."""
    return tmp_path_factory.mktemp("marks") / "data"


@pytest.fixture(scope="module")
def up(data_dir: Path, disk: Disk) -> Iterator[UpProcess]:
    settings = (
        f"engine.max_offsets_per_trigger={PER_BATCH}",
        f"throttle.lag_high={LAG_HIGH}",
        f"throttle.lag_low={LAG_LOW}",
        f"throttle.free_disk_low={disk.low}",
        f"throttle.free_disk_high={disk.high}",
    )
    with UpProcess(data_dir, *options(*settings)) as process:
        yield process


def options(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


@pytest.fixture
def producer(up: UpProcess) -> Iterator[Producer]:
    with Producer(up.kafka, max_attempts=1_000, deadline_ms=200_000, backoff=BACKOFF, registry=CollectorRegistry()) as made:
        yield made


def verdicts(up: UpProcess) -> list[Any]:
    """The records with key `*`, oldest first."""
    return [record for record in records_of(up, "inflight.throttle") if record.key == b"*"]


def told(record: Any) -> str:
    """Returns why backends have to wait, or an empty text for a tombstone."""
    reason: str = "" if record.value is None else msgspec.json.decode(record.value)["reason"]
    return reason


def await_release(up: UpProcess, why: str) -> tuple[Any, Any]:
    """The one record that asked everybody to wait for this reason, and the one that followed it: a tombstone."""

    def both() -> list[Any] | None:
        written = verdicts(up)
        (position,) = (number for number, record in enumerate(written) if why in told(record))
        return written[position : position + 2] if len(written) > position + 1 else None

    throttled, released = wait_until(both, "the engine says that backends may go on")
    assert msgspec.json.decode(throttled.value)["code"] == 530
    assert released.value is None
    return throttled, released


def micro_batches(up: UpProcess) -> list[BatchProgress]:
    lines = (up.data_dir / PROGRESS_FILE).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=BatchProgress) for line in lines]


def ended_ms(batch: BatchProgress) -> int:
    return round(datetime.fromisoformat(batch.started).timestamp() * 1_000) + batch.duration_ms


def await_micro_batches(up: UpProcess, count: int) -> None:
    seen = last_progress(up.data_dir)
    assert seen is not None
    await_batches(up.kafka, lambda: (last_progress(up.data_dir) or seen).batch_id, count)


def check_waited(held: "list[Future[SendResult]]", why: str, released_ms: int) -> None:
    """Every send was refused with 530 until the engine had written that backends may go on, and then it was confirmed."""
    for future in held:
        attempts = future.result(timeout=60).attempts
        *refused, confirmed = attempts
        assert refused
        assert {attempt.cause for attempt in refused} == {Cause.THROTTLED}
        assert all(why in (attempt.error or "") for attempt in refused), refused[0]
        assert refused[0].wait_ms == BACKOFF.initial_ms
        assert confirmed.error is None
        assert confirmed.started_ms >= released_ms - CLOCK_MS


def test_a_state_that_is_too_large_makes_all_backends_wait(data_dir: Path) -> None:
    """The mark is one byte: any state that RocksDB has written to a file is over it."""
    with UpProcess(data_dir, *options("throttle.state_high=1", "throttle.state_low=0")) as up:
        with Producer(up.kafka, max_attempts=2, backoff=BACKOFF, registry=CollectorRegistry()) as producer:
            for number in range(20):
                producer.send(f"client-{number}", "t", b"x")
            wait_until(lambda: producer.throttled("anybody") is not None, "the Producer hears of it")
            with pytest.raises(SendFailed, match="530 TOO_MANY_REQUESTS: the session state has") as caught:
                producer.send("anybody", "t", b"x")
        assert [attempt.wait_ms for attempt in caught.value.attempts] == [BACKOFF.initial_ms, 0]
        leave_to_a_sleeper(up)
        first_size = next(batch.state_bytes for batch in micro_batches(up) if batch.state_bytes > 0)
        assert told(verdicts(up)[-1]) == f"the session state has {format_size(first_size)}"
    assert up.exit_code == 0


def leave_to_a_sleeper(up: UpProcess) -> None:
    """Messages wait for a device that is away, in order; after those that it takes, more are left for the next engine."""
    with WireDevice(up.mqtt, SLEEPER, 4):
        pass
    with Backend(up.kafka) as backend:
        backend.send(SLEEPER, b"a", b"b", b"c")
        assert taken_by_the_sleeper(up) == [b"a", b"b", b"c"]
        backend.send(SLEEPER, b"d", b"e", b"f")


def taken_by_the_sleeper(up: UpProcess) -> list[bytes]:
    with WireDevice(up.mqtt, SLEEPER, 4) as device:
        assert device.session_present
        messages = [device.receive() for _ in range(3)]
        for message in messages:
            device.finish(message)
        device.publish(b"done", qos=1, packet_id=1)
        device.expect(acknowledgement(PUBACK, 1))  # the log has its acknowledgements, too
        return [message.payload for message in messages]


def test_session_and_messages_survive_a_stop_of_everything(up: UpProcess) -> None:
    assert taken_by_the_sleeper(up) == [b"d", b"e", b"f"]


def test_the_next_engine_says_anew_who_has_to_wait(up: UpProcess, producer: Producer) -> None:
    """The new engine has other watermarks, by which no backend has to wait."""
    wait_until(lambda: verdicts(up)[-1].value is None, "the new engine's verdict")
    wait_until(lambda: producer.throttled("anybody") is None, "the Producer hears of it")
    assert [attempt.error for attempt in producer.send("anybody", "t", b"x").attempts] == [None]


def test_an_engine_that_is_behind_makes_all_backends_wait(up: UpProcess, producer: Producer) -> None:
    flood = KafkaProducer(bootstrap_servers=up.kafka, acks="all")
    for number in range(FLOOD):
        flood.send("inflight.messages", key=b"flood-%d" % (number % 40), value=b"x", headers=[("mqtt-topic", b"t")])
    flood.flush()
    flood.close()
    wait_until(lambda: producer.throttled("anybody") is not None, "the Producer hears of it")
    held = [producer.send_async(client, "t", b"x", message_id=f"held-{client}") for client in ("anybody", "another")]
    throttled, released = await_release(up, "records behind")

    batches = micro_batches(up)
    above = next(number for number, batch in enumerate(batches) if batch.consumer_lag >= LAG_HIGH)
    below = next(number for number, batch in enumerate(batches) if number > above and batch.consumer_lag <= LAG_LOW)
    assert told(throttled) == f"the engine is {batches[above].consumer_lag} records behind"
    # Between the marks it stayed as it was.
    assert any(LAG_LOW < batch.consumer_lag < LAG_HIGH for batch in batches[above:below])
    assert throttled.timestamp_ms >= ended_ms(batches[above]) - CLOCK_MS
    assert released.timestamp_ms >= ended_ms(batches[below]) - CLOCK_MS
    check_waited(held, "records behind", released.timestamp_ms)


def test_a_full_disk_makes_all_backends_wait_until_there_is_room(up: UpProcess, producer: Producer, disk: Disk) -> None:
    assert producer.send("somebody", "t", b"x").attempts[0].error is None
    disk.fill()
    try:
        wait_until(lambda: producer.throttled("somebody") is not None, "the Producer hears of it")
        held = [producer.send_async("somebody", "t", b"x", message_id="held-for-the-disk")]
        disk.leave_between_the_marks()
        await_micro_batches(up, 3)
        assert producer.throttled("somebody") is not None
        assert not held[0].done()
    finally:
        disk.empty()
    _, released = await_release(up, "are left on the disk of the checkpoint")
    check_waited(held, "are left on the disk of the checkpoint", released.timestamp_ms)
