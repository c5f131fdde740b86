"""A second engine that waits: what it does when the first one is killed, frozen or stopped, and what happens without it."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from state.commands import GatewayCommand, SendPublish
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


class Device:
    """Acknowledges each message once. A micro-batch that is executed again writes its commands again, and gateways drop them."""

    def __init__(self, topics: EngineTopics) -> None:
        self._topics = topics
        self._received: set[bytes] = set()

    def receive(self, *, beyond: int = -1, all_of: list[bytes] | None = None) -> None:
        """Returns when it has a message with a number beyond this one, and all of these."""

        def is_enough(commands: list[GatewayCommand]) -> bool:
            for command in commands:
                if isinstance(command, SendPublish) and command.payload not in self._received:
                    self._received.add(command.payload)
                    self._topics.acknowledge(command)
            newest = max(map(int, self._received), default=-1)
            return newest > beyond and self._received.issuperset(all_of or ())

        self._topics.commands(is_enough)


def assert_delivered_once(topics: EngineTopics, device: Device, payloads: list[bytes]) -> None:
    device.receive(all_of=payloads)
    assert topics.outcomes(len(payloads)) == {payload.decode(): "delivered" for payload in payloads}


def test_a_standby_takes_over_from_a_killed_engine(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = EngineTopics(kafka, "taken-over")
    settings = topics.settings(tmp_path)
    with engine(settings) as first, standby(settings) as second:
        topics.connect(1)
        device = Device(topics)
        with flow(topics) as sent:
            device.receive(beyond=len(sent))
            first.signal_all(signal.SIGKILL)
            killed_s = time.monotonic()
            device.receive(beyond=len(sent))
            print(f"commands after {time.monotonic() - killed_s:.1f} s")
            second.await_ready(READY_S)
        assert_delivered_once(topics, device, sent)
        assert second.stop() == 0


def test_a_standby_leaves_the_work_to_a_frozen_engine(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = EngineTopics(kafka, "not-taken-over")
    settings = topics.settings(tmp_path)
    with engine(settings) as first, standby(settings) as second:
        topics.connect(1)
        device = Device(topics)
        with flow(topics) as sent:
            device.receive(beyond=len(sent))
            first.signal_all(signal.SIGSTOP)
            time.sleep(FROZEN_S)
            first.signal_all(signal.SIGCONT)
            device.receive(beyond=len(sent))
            second.kill()
            device.receive(beyond=len(sent))
        assert_delivered_once(topics, device, sent)
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
