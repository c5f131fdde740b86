"""sinks.fast_path.router: what a router does in a burst, with a consumer and an event loop of the test."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from sinks.fast_path import router as router_module
from sinks.fast_path.offering import FastPathState, Offers
from sinks.fast_path.router import KafkaRouter
from sinks.kafka.group_consumer import PartitionsAssigned
from sinks.kafka.host_settings import HostSettings
from sinks.kafka.partitioning import partition_of
from sinks.routing.settings import FastPathSettings
from state.model import Position
from tests.unit.sinks.fast_path.test_offering import Here, Record

FULL = router_module._MOST_RECORDS


class Consumer:
    """Returns the polls of a test, and then ends the router. end: of the partition."""

    def __init__(self, router: KafkaRouter, polls: list[list[Record]], end: int) -> None:
        self.changes: deque[Any] = deque([PartitionsAssigned({0: 0})])
        self.skipped = 0
        self._router, self._polls, self._end = router, polls, end

    def poll(self, timeout_s: float, most: int) -> dict[int, list[Record]]:
        if not self._polls:
            self._router._stopping.set()
            return {}
        return {0: self._polls.pop(0)}

    def partition_count(self) -> int:
        return 1

    def known_end(self, partition: int) -> int:
        return self._end

    def skip_to_end(self, partition: int) -> int:
        self.skipped += 1
        return self._end

    def close(self) -> None:
        pass


class Gateway:
    """Holds a connection of each client, none of which can take an offer at once."""

    is_under_pressure = False

    def __init__(self) -> None:
        self.here = self.skipped = 0

    def connection_of(self, client_id: str) -> Here:
        return Here(1, FastPathState.HOLDING)

    def offers(self, offers: Offers, waiting: int) -> None:
        self.here += len(offers.here)
        self.skipped += offers.skipped


class Loop:
    """Calls at once, or when the test says."""

    def __init__(self, *, late: bool = False) -> None:
        self.late: list[Callable[[], None]] | None = [] if late else None

    def call_soon_threadsafe(self, function: Callable[..., None], *arguments: Any) -> None:
        if self.late is None:
            function(*arguments)
        else:
            self.late.append(lambda: function(*arguments))


def routed(*polls: list[Record], end: int = FULL, loop: Loop | None = None) -> tuple[Gateway, Consumer]:
    router, gateway = KafkaRouter(FastPathSettings(), HostSettings()), Gateway()
    consumer = Consumer(router, list(polls), end)
    router._listener, router._loop = gateway, loop or Loop()  # type: ignore[assignment]
    router._new_consumer = lambda: consumer  # type: ignore[assignment,return-value]
    router._consume()
    return gateway, consumer


def poll(clients: int, count: int = FULL, first: int = 0) -> list[Record]:
    """Returns records for so many clients in turn."""
    return [Record(b"c%d" % (number % clients), first + number) for number in range(count)]


@pytest.mark.parametrize(("clients", "offered"), [(1, FULL), (3, FULL), (FULL, 0)])
def test_a_burst_is_left_to_micro_batches_if_it_is_for_many(clients: int, offered: int) -> None:
    gateway, _ = routed(poll(clients))
    assert (gateway.here, gateway.skipped) == (offered, FULL - offered)


def test_what_a_poll_can_hold_is_no_burst() -> None:
    assert routed(poll(FULL - 1, FULL - 1))[0].skipped == 0


@pytest.mark.parametrize(("clients", "skipped"), [(1, 0), (FULL, 1)])
def test_a_router_behind_skips_to_the_end_if_messages_are_for_many(clients: int, skipped: int) -> None:
    assert routed(poll(clients), end=FULL + FastPathSettings().max_lag + 1)[1].skipped == skipped


def test_a_router_far_behind_skips_to_the_end_for_few_too() -> None:
    assert routed(poll(1), end=FULL + FastPathSettings().max_lag_of_few + 1)[1].skipped == 1


def test_a_router_waits_for_its_gateway_before_it_reads_on_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    loop = Loop(late=True)
    monkeypatch.setattr(KafkaRouter, "_await_gateway", lambda self: waits.append(self._made - self._looked_at))
    routed(poll(1), poll(1, first=FULL), poll(FULL, first=2 * FULL), end=3 * FULL, loop=loop)
    assert waits == [FULL, 2 * FULL], "behind the offers of each poll for few"


def test_the_wait_ends_when_the_gateway_has_handled_most() -> None:
    router = KafkaRouter(FastPathSettings(), HostSettings())
    router._listener = Gateway()
    router._made = router_module._FEW_WAITING + 1
    offers = Offers()
    offers.here = [("c", None)] * 2  # type: ignore[list-item]
    router._deliver(offers)
    router._await_gateway()
    assert router._made - router._looked_at <= router_module._FEW_WAITING


def test_it_says_up_to_where_it_has_read_what_is_for_a_client() -> None:
    router, mine = KafkaRouter(FastPathSettings(), HostSettings()), partition_of(b"mine", 4)
    assert router.read_to("mine") is None, "it does not know how many partitions there are"
    router._own(frozenset((mine,)), 4)
    router._memory.assigned(mine, 7)
    assert router.read_to("mine") == Position(mine, 6)
    other = next(name for name in "abcdefgh" if partition_of(name.encode(), 4) != mine)
    assert router.read_to(other) is None, "another router reads it"
