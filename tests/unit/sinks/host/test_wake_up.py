from typing import Any

import pytest

from sinks.host.wake_up import WakeUps
from sinks.kafka.append import AppendFailed, Confirmation
from state.records.wake_ups import INTERVAL_MS


class Site:
    """A loop and a log in one. timers: of the loop. sent: confirmations of the log."""

    def __init__(self, topic: str | None = "wake-ups") -> None:
        self.timers: list[Any] = []
        self.sent: list[Confirmation] = []
        self.wake_ups = WakeUps(self, topic, self)  # type: ignore[arg-type]

    def call_later(self, delay_s: float, callback: Any) -> None:
        assert delay_s * 1_000 == INTERVAL_MS
        self.timers.append(callback)

    def append(self, topic: str, key: bytes, value: bytes | None, headers: Any, done: Confirmation, **_: Any) -> None:
        assert topic == "wake-ups"
        self.sent.append(done)

    async def close(self, timeout_s: float) -> None: ...


@pytest.fixture
def site() -> Site:
    return Site()


def test_the_first_one_is_sent_at_once_and_the_others_after_the_interval(site: Site) -> None:
    for _ in range(3):
        site.wake_ups.send()
    assert (len(site.sent), len(site.timers)) == (1, 1)
    site.timers.pop()()
    assert (len(site.sent), len(site.timers)) == (2, 1)
    site.timers.pop()()
    assert (len(site.sent), site.timers) == (2, [])
    site.wake_ups.send()
    assert len(site.sent) == 3


def test_they_arrive_if_kafka_has_taken_the_last_one(site: Site) -> None:
    assert not site.wake_ups.arrive
    for error, arrive in ((None, True), (AppendFailed("no right to write"), False)):
        site.wake_ups.send()
        site.sent.pop()(error)
        assert site.wake_ups.arrive is arrive
        site.timers.pop()()


def test_one_is_sent_as_a_proof_only_if_none_has_arrived(site: Site) -> None:
    site.wake_ups.prove()
    site.sent.pop()(None)
    site.timers.pop()()
    site.wake_ups.prove()
    assert (site.sent, site.timers) == ([], [])


def test_without_a_topic_none_is_sent() -> None:
    site = Site(None)
    site.wake_ups.send()
    site.wake_ups.prove()
    assert (site.sent, site.timers, site.wake_ups.arrive) == ([], [], False)
