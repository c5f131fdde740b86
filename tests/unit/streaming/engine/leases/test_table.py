from state.records.leases import Lease
from streaming.engine.leases.table import LeaseTable

LEASE = Lease(holder="gateway", duration_ms=1_000)
ENDED = Lease(holder="gateway", duration_ms=1_000, ended=True)


def table(*lease_ids: str) -> LeaseTable:
    made = LeaseTable()
    for lease_id in lease_ids:
        made.read(lease_id, LEASE)
    return made


def test_a_lease_expires_after_one_and_a_half_durations_of_watched_time() -> None:
    leases = table("a")
    leases.watched(1_499)
    assert (leases.expire(), leases.live) == ([], {"a"})
    leases.watched(1)
    assert (leases.expire(), leases.live, leases.expired) == (["a"], frozenset(), ("a",))
    assert leases.expire() == []


def test_a_renewal_makes_it_young_again() -> None:
    leases = table("a", "b")
    leases.watched(1_400)
    leases.read("a", LEASE)
    leases.watched(1_400)
    assert (leases.expire(), leases.live) == (["b"], {"a"})


def test_the_duration_is_the_leases_own() -> None:
    leases = table("short")
    leases.read("long", Lease(holder="bridge", duration_ms=10_000))
    leases.watched(10_000)
    assert leases.expire() == ["short"]
    assert leases.holders(["long", "short", "unknown"]) == ["bridge", "gateway"]


def test_an_expired_lease_never_lives_again() -> None:
    leases = table("a")
    leases.watched(1_500)
    leases.expire()
    leases.read("a", LEASE)
    assert (leases.live, leases.expired) == (frozenset(), ("a",))


def test_an_ended_lease_is_reported_once_and_needs_no_search() -> None:
    leases = table("a", "b")
    leases.read("a", ENDED)
    assert (leases.live, leases.expired, leases.pop_ended(), leases.pop_ended()) == ({"b"}, (), ["a"], [])


def test_what_was_forgotten_is_not_there() -> None:
    leases = table("live", "gone")
    leases.watched(1_500)
    leases.read("live", LEASE)
    leases.expire()
    for lease_id in ("live", "gone", "never seen"):
        leases.read(lease_id, None)
    assert (leases.live, leases.expired, leases.holders(["live", "gone"])) == (frozenset(), (), [])


def test_all_holders_wake_if_each_live_lease_says_so() -> None:
    leases = LeaseTable()
    assert not leases.all_wake, "nobody is known"
    leases.read("new", Lease(holder="gateway", duration_ms=1_000, wakes=True))
    assert leases.all_wake
    leases.read("old", LEASE)
    assert not leases.all_wake
    leases.watched(1_400)
    leases.read("new", Lease(holder="gateway", duration_ms=1_000, wakes=True))
    leases.watched(100)
    leases.expire()
    assert leases.all_wake
