"""Connection ids: growing, of one kind, telling which, and above those that a session has accepted, whatever the clock says."""

from itertools import chain, repeat

import pytest

from sinks.host.connection_ids import ConnectionIds, ConnectionKind, kind_of

SECOND_NS = 1_000_000_000
NOW_NS = 1_700_000_000 * SECOND_NS
KINDS = pytest.mark.parametrize("kind", ConnectionKind)


@KINDS
@pytest.mark.parametrize(
    "times",
    [[NOW_NS], [NOW_NS, NOW_NS - 3_600 * SECOND_NS, NOW_NS + 1_000_000, 0, -SECOND_NS], [1 << 80]],
    ids=["a clock that stands still", "a clock that is stepped back", "a clock far in the future"],
)
def test_ids_grow_within_63_bits_and_contain_their_kind(kind: ConnectionKind, times: list[int]) -> None:
    clock = chain(times, repeat(times[-1]))
    ids = ConnectionIds(kind, clock_ns=lambda: next(clock))
    made = [ids.next() for _ in range(5_000)]
    assert made == sorted(set(made))
    assert made[-1] < 1 << 63
    assert {kind_of(number) for number in made} == {kind}


@KINDS
@pytest.mark.parametrize("other", ConnectionKind)
def test_an_id_is_above_the_newest_id_of_a_session(kind: ConnectionKind, other: ConnectionKind) -> None:
    ahead = ConnectionIds(other, clock_ns=lambda: NOW_NS + 3_600 * SECOND_NS)
    behind = ConnectionIds(kind, clock_ns=lambda: NOW_NS)
    newest = ahead.next()
    assert behind.next() < newest
    behind.rise_above(newest)
    made = [behind.next() for _ in range(100)]
    assert made == sorted({*made})
    assert made[0] > newest
    assert {kind_of(number) for number in made} == {kind}


def test_an_id_of_the_past_is_what_it_would_have_been_then() -> None:
    clock = [NOW_NS]
    ids = ConnectionIds(ConnectionKind.GATEWAY, clock_ns=lambda: clock[0])
    before = ids.next()
    clock[0] += 3 * SECOND_NS
    between, after = ids.of_the_past(1_000), ids.next()
    assert before < between < after
    assert kind_of(between) is ConnectionKind.GATEWAY
    assert ids.of_the_past(4_000) < before
    assert ids.next() > after, "it takes nothing back"
    assert ConnectionIds(ConnectionKind.BRIDGE, clock_ns=lambda: 0).of_the_past(1_000) >= 0


def test_an_id_that_is_made_late_is_above_the_newest_known_before() -> None:
    clock = [NOW_NS]
    behind = ConnectionIds(ConnectionKind.GATEWAY, clock_ns=lambda: clock[0])
    newest = ConnectionIds(ConnectionKind.GATEWAY, clock_ns=lambda: clock[0] + 3_600 * SECOND_NS).next()
    behind.rise_above(newest)
    clock[0] += SECOND_NS
    earlier, later = behind.of_the_past(1_100), behind.of_the_past(900)
    assert earlier < newest < later < behind.next()


def test_what_is_below_changes_nothing() -> None:
    ids = ConnectionIds(ConnectionKind.GATEWAY, clock_ns=lambda: NOW_NS)
    last = ids.next()
    ids.rise_above(0)
    assert ids.next() > last
