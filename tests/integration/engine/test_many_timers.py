"""Starts an engine when many timers are due: each micro-batch is short enough, and a message waits for the first one only.

By hand, with more of them:
INFLIGHT_TIMERS=400000 pytest -s tests/integration/engine/test_many_timers.py
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from kafka import KafkaProducer

from state.commands import SendPublish
from state.events import ClientConnected
from state.records.commands import decode_command_batch
from state.records.events import encode_event
from streaming.config.settings import Settings
from streaming.topics import ensure_topics
from tests.integration.engine.test_large_backlog import batches
from tests.spark.child_engine import engine
from tests.support.kafka_topics import read_topic
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

TIMERS = int(os.environ.get("INFLIGHT_TIMERS", "20000"))
pytestmark = [pytest.mark.faults, pytest.mark.timeout(0 if TIMERS > 20_000 else 540)]
TIME_TO_LIVE_S = 40 + TIMERS / 600
"""Long enough to store them all."""
PATIENCE_S = 300.0 + TIMERS / 100
PREFIX = "timers"
EVERY_S = 0.5
HEADERS = [("mqtt-topic", b"t")]


@contextmanager
def messages_for_one_that_is_there(bootstrap_servers: str) -> Iterator[list[int]]:
    """QoS 0, each with the time when it was sent as its payload. The milliseconds, as they are sent."""
    sent: list[int] = []
    stop = Event()

    def send() -> None:
        producer = KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all")
        while not stop.wait(EVERY_S):
            now_ms = time.time_ns() // 1_000_000
            producer.send(f"{PREFIX}.messages", b"%d" % now_ms, key=b"here", headers=[*HEADERS, ("mqtt-qos", b"0")]).get(60)
            sent.append(now_ms)
        producer.close()

    thread = Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


def latencies_s(bootstrap_servers: str, sent: list[int]) -> list[float]:
    """Returns how long each message took from the backend's record to the gateway's command, in the order of sending."""
    arrived: dict[int, int] = {}

    def complete(records: list[object]) -> bool:
        for record in records:
            for command in decode_command_batch(record.value or b"").commands:  # type: ignore[attr-defined]
                if isinstance(command, SendPublish):
                    arrived.setdefault(int(command.payload), record.timestamp_ms)  # type: ignore[attr-defined]
        return set(sent) <= arrived.keys()

    read_topic(bootstrap_servers, f"{PREFIX}.commands", complete)
    return [(arrived[sent_ms] - sent_ms) / 1_000 for sent_ms in sent]


@pytest.mark.promise("many-timers")
def test_an_engine_works_off_what_fell_due_while_it_was_away(kafka: SharedKafka, tmp_path: Path) -> None:
    configuration = {
        "engine": {"data_dir": str(tmp_path)},
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
        "topics": {"prefix": PREFIX},
    }
    settings = Settings(**configuration)
    ensure_topics(settings)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, acks=1, linger_ms=20, batch_size=1 << 18)
    event = ClientConnected(connection_id=1, commands_partition=0, clean_start=False)
    producer.send(f"{PREFIX}.events", encode_event(event), key=b"here")
    headers = [*HEADERS, ("expiration", b"%d" % (1_000 * TIME_TO_LIVE_S))]
    for number in range(TIMERS):
        producer.send(f"{PREFIX}.messages", b"p", key=b"away-%d" % number, headers=headers)
    producer.close()
    due = time.time() + TIME_TO_LIVE_S
    with engine(configuration) as first:

        def taken() -> bool:
            found = batches(tmp_path)
            return sum(batch.rows for batch in found) > TIMERS and not found[-1].consumer_lag

        wait_until(
            taken,
            lambda: f"all messages are taken: {[(batch.rows, batch.duration_ms) for batch in batches(tmp_path)]}",
            within_s=TIME_TO_LIVE_S,
            check=lambda: first.process.poll() is None or pytest.fail("the engine died"),
        )
        assert first.stop() == 0
    before = batches(tmp_path)
    assert not any(batch.clients_removed for batch in before), "too slow: some have expired before the standstill"
    stored_s = time.time() - due + TIME_TO_LIVE_S
    wait_until(lambda: time.time() > due, "the time to live of all messages", within_s=TIME_TO_LIVE_S)

    began = time.monotonic()
    with (
        engine(configuration, ready_within_s=settings.engine.hangs_after_ms / 1_000) as second,
        messages_for_one_that_is_there(kafka.bootstrap_servers) as sent,
    ):
        wait_until(
            lambda: sum(batch.clients_removed for batch in batches(tmp_path)) == TIMERS,
            lambda: f"all have expired: {[(b.clients_removed, b.duration_ms) for b in batches(tmp_path)[len(before) :]]}",
            within_s=PATIENCE_S,
            check=lambda: second.process.poll() is None or pytest.fail("the engine died"),
        )
        took_s = time.monotonic() - began
        waited = latencies_s(kafka.bootstrap_servers, sent[:])
        assert second.stop() == 0
    done = [batch for batch in batches(tmp_path)[len(before) :] if batch.clients_updated or batch.clients_removed]
    lengths = sorted((batch.duration_ms / 1_000 for batch in done), reverse=True)
    later = sorted(waited[len(waited) // 10 :])
    print(
        f"{TIMERS} timers, stored in {stored_s:.0f} s, worked off in {took_s:.0f} s and {len(done)} micro-batches; the longest "
        f"{lengths[0]:.1f} s, the next {lengths[1]:.1f} s; {len(waited)} messages to another device: longest "
        f"{max(waited):.1f} s; after the first tenth: p50 {later[len(later) // 2]:.1f} s, longest {later[-1]:.1f} s"
    )
    receipts = read_topic(kafka.bootstrap_servers, f"{PREFIX}.receipts")
    assert sum(b'"expired"' in (record.value or b"") for record in receipts) == TIMERS, "each has one receipt"
    assert len({record.key for record in receipts if b'"expired"' in (record.value or b"")}) == TIMERS
    assert lengths[0] < settings.engine.hangs_after_ms / 1_000, "the watchdog would have ended the engine"
    assert max(waited) < 2 * lengths[0] + 10
    assert later[len(later) // 2] < took_s / 4, "a message waits for all of them"
