"""A second engine that waits: what it does when the first one is killed, frozen or stopped, and what happens without it."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.spark.child_engine import READY_S, engine, standby
from tests.spark.engine_topics import EngineTopics
from tests.support.shared import SharedKafka

pytestmark = pytest.mark.faults

FROZEN_S = 20.0
"""Longer than the session time-out of the engines' group."""


@contextmanager
def flow(topics: EngineTopics) -> Iterator[list[bytes]]:
    """Sends ten messages a second in the block. Yields what was sent."""
    sent: list[bytes] = []
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(0.1):
            topics.send(payload := b"%d" % len(sent))
            sent.append(payload)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sent
    finally:
        stopping.set()
        thread.join()


def assert_sent_and_delivered_once(topics: EngineTopics, payloads: list[bytes]) -> None:
    publishes = topics.sent(len(payloads))
    assert Counter(publish.payload for publish in publishes) == Counter(payloads)
    for publish in publishes:
        topics.acknowledge(publish)
    assert set(topics.outcomes(len(payloads)).values()) == {"delivered"}


def test_a_standby_takes_over_from_a_killed_engine(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = EngineTopics(kafka, "taken-over")
    settings = topics.settings(tmp_path)
    with engine(settings) as first, standby(settings) as second:
        topics.connect(1)
        with flow(topics) as sent:
            topics.sent(5)
            first.signal_all(signal.SIGKILL)
            killed_s, before = time.monotonic(), len(sent)
            topics.sent(before + 1)
            print(f"commands after {time.monotonic() - killed_s:.1f} s")
            second.await_ready(READY_S)
        assert_sent_and_delivered_once(topics, sent)
        assert second.stop() == 0


def test_a_standby_leaves_the_work_to_a_frozen_engine(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = EngineTopics(kafka, "not-taken-over")
    settings = topics.settings(tmp_path)
    with engine(settings) as first, standby(settings) as second:
        topics.connect(1)
        with flow(topics) as sent:
            topics.sent(5)
            first.signal_all(signal.SIGSTOP)
            time.sleep(FROZEN_S)
            first.signal_all(signal.SIGCONT)
            topics.sent(len(sent) + 1)
            second.kill()
            topics.sent(len(sent) + 1)
        assert_sent_and_delivered_once(topics, sent)
        assert first.stop() == 0
        assert "standby_takes_over" not in second.read_log()


def test_a_standby_goes_on_when_the_engine_is_stopped(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = EngineTopics(kafka, "handed-over")
    settings = topics.settings(tmp_path)
    with engine(settings) as first, standby(settings) as second:
        topics.connect(1)
        topics.deliver(b"1", before=0)
        assert first.stop() == 0
        second.await_ready(READY_S)
        topics.deliver(b"2", before=1)
        assert second.stop() == 0
