import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sinks.host.lease import HeldLease, boot_clock_ms
from sinks.kafka.append import AppendFailed, Confirmation, Headers
from state.records.leases import Lease, decode_lease

DURATION_MS = 6_000
SIXTH_MS = 1_000


class Loop:
    """The timers of an event loop, as far as a lease uses them."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, callback: Callable[..., None], *args: object) -> "Loop":
        assert delay_s * 1_000 == SIXTH_MS
        self.timers.append(lambda: callback(*args))
        return self

    def cancel(self) -> None:
        self.timers.clear()


class Holder:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 100.0
        self.said: list[str] = []
        self.appended: list[tuple[str, Lease, Confirmation]] = []
        self.loop = Loop()
        self.ticks = 0
        self.wakes = False
        self.lacks = ""
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self.loop)
        self.lease = HeldLease(
            self,
            topic="leases",
            holder="gateway a:1",
            duration_ms=DURATION_MS,
            taken=lambda: self.said.append("taken"),
            passed=lambda: self.said.append("passed"),
            renewing=self._renewing,
            wakes=lambda: self.wakes,
            lacks=lambda: self.lacks,
            clock_ms=lambda: self.now_ms,
        )
        self.lease.start()

    def _renewing(self) -> None:
        self.ticks += 1

    def append(self, topic: str, key: bytes, value: bytes | None, headers: Headers | None, done: Confirmation, **_: Any) -> None:
        assert topic == "leases"
        self.appended.append((key.decode(), decode_lease(value or b""), done))

    async def close(self, timeout_s: float) -> None: ...

    def tick(self, ms: float = SIXTH_MS) -> None:
        self.now_ms += ms
        self.loop.timers.pop()()

    def confirm(self, index: int = -1, error: Exception | None = None) -> None:
        self.appended[index][2](error)


@pytest.fixture
def holder(monkeypatch: pytest.MonkeyPatch) -> Holder:
    return Holder(monkeypatch)


def test_a_renewal_says_what_the_holder_lacks(holder: Holder) -> None:
    holder.lacks = "no broker"
    holder.lease.renew()
    assert [lease.lacks for _, lease, _ in holder.appended] == [""], "it has no lease yet"
    holder.confirm()
    holder.lease.renew()
    holder.lacks = ""
    holder.tick()
    assert [lease.lacks for _, lease, _ in holder.appended] == ["", "no broker", ""]
    holder.lease.end(all_told=False)
    holder.lease.renew()
    assert len(holder.appended) == 3


def test_there_is_no_lease_before_kafka_has_it(holder: Holder) -> None:
    assert not holder.lease.holds()
    holder.confirm()
    assert holder.lease.holds()
    assert holder.said == ["taken"]
    [(lease_id, lease, _)] = holder.appended
    assert (lease_id, lease) == (holder.lease.lease_id, Lease(holder="gateway a:1", duration_ms=DURATION_MS))


@pytest.mark.parametrize("slow", [1, 10, 11])
def test_slow_first_renewals_are_repeated_up_to_ten_times(holder: Holder, slow: int) -> None:
    for _ in range(slow):
        assert not holder.lease.holds()
        holder.now_ms += 21
        holder.confirm()
    if slow <= 10:
        assert holder.said == []
        holder.now_ms += 5
        holder.confirm()
    assert holder.said == ["taken"]
    assert len(holder.appended) == min(slow, 10) + 1
    assert len(holder.loop.timers) == 1, "the others come at their time"


def test_a_lease_holds_from_the_sending_of_its_renewal(holder: Holder) -> None:
    holder.confirm()
    holder.tick()
    holder.now_ms += 4_000
    holder.confirm()
    holder.now_ms += 1_999
    assert holder.lease.holds()
    holder.now_ms += 1
    assert not holder.lease.holds()
    assert holder.said == ["taken", "passed"]


def test_a_confirmation_that_comes_too_late_gives_no_lease(holder: Holder) -> None:
    holder.now_ms += DURATION_MS
    holder.confirm()
    assert not holder.lease.holds()
    assert holder.said == []


def test_renewals_keep_the_lease_and_its_id_and_some_may_fail(holder: Holder) -> None:
    holder.confirm()
    for failed in [True, True, False] * 10:
        holder.tick()
        holder.confirm(error=AppendFailed("no") if failed else None)
        assert holder.lease.holds()
    assert {lease_id for lease_id, _, _ in holder.appended} == {holder.lease.lease_id}
    assert holder.said == ["taken"]
    assert holder.ticks == len(holder.appended) == 31


@pytest.mark.promise("gateway-frozen")
def test_an_expired_lease_is_reported_once_and_never_holds_again(holder: Holder) -> None:
    first = holder.lease.lease_id
    holder.confirm()
    holder.tick()
    holder.tick(DURATION_MS)  # the process was paused, and nothing polled the lease meanwhile
    assert holder.said == ["taken", "passed"]
    second = holder.lease.lease_id
    assert second != first
    holder.confirm(1)  # of the first lease, sent before
    assert not holder.lease.holds()
    holder.confirm(2)
    assert holder.lease.holds()
    assert holder.said == ["taken", "passed", "taken"]
    assert [lease_id for lease_id, _, _ in holder.appended] == [first, first, second]


def test_a_late_confirmation_reports_that_the_lease_has_expired(holder: Holder) -> None:
    holder.confirm()
    holder.tick()
    holder.now_ms += 5_000
    holder.confirm()
    assert holder.said == ["taken", "passed"]
    assert not holder.lease.holds()


def test_an_older_confirmation_does_not_shorten_a_lease(holder: Holder) -> None:
    holder.tick()
    holder.confirm(1)
    holder.confirm(0)
    holder.now_ms += DURATION_MS - 1
    assert holder.lease.holds()


@pytest.mark.parametrize("all_told", [True, False])
def test_only_a_holder_whose_ends_are_recorded_ends_its_lease(holder: Holder, all_told: bool) -> None:
    holder.confirm()
    holder.lease.end(all_told=all_told)
    holder.lease.end(all_told=all_told)
    assert [lease.ended for _, lease, _ in holder.appended] == ([False, True] if all_told else [False])
    assert holder.loop.timers == []
    holder.confirm()
    assert holder.lease.holds() is not all_told


def test_without_a_lease_none_is_ended(holder: Holder) -> None:
    holder.lease.end(all_told=True)
    assert len(holder.appended) == 1
    holder.confirm()
    assert not holder.lease.holds()


def test_the_clock_counts_milliseconds() -> None:
    before: Any = boot_clock_ms()
    assert 0 <= boot_clock_ms() - before < 10_000


def test_each_renewal_says_whether_wake_ups_arrive(holder: Holder) -> None:
    holder.wakes = True
    holder.tick()
    holder.wakes = False
    holder.tick()
    assert [lease.wakes for _, lease, _ in holder.appended] == [False, True, False]
