"""streaming.engine.leases.keeper: topic, sessions and clocks by hand."""

import datetime
import threading
from collections.abc import Iterable

import pytest
from kafka.errors import KafkaTimeoutError
from structlog.testing import capture_logs

from state.errors import NewerRecord
from state.records.leases import Lease
from streaming.engine.leases.connections import OpenConnection
from streaming.engine.leases.keeper import LeaseKeeper, LeaseReport
from streaming.engine.progress import BatchProgress
from tests.support.waiting import DEADLINE_S, wait_until

LEASE = Lease(holder="gateway", duration_ms=2_000)
BEGAN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class KeeperHarness:
    """unread: records of the topic. open: connections in the sessions. told: in the log, and not read by the sessions yet."""

    def __init__(self, *, first_search_s: float = 1e9) -> None:
        self.now_s = 0.0
        self.unread: list[tuple[str, Lease | None]] = []
        self.appended_during_search: list[tuple[str, Lease | None]] = []
        self.open: list[OpenConnection] = []
        self.told: list[OpenConnection] = []
        self.forgotten: list[str] = []
        self.searches = 0
        self.search_takes_s = 0.0
        self.reports: list[LeaseReport] = []
        self.failing = False
        self.newer = False
        self.closed = False
        self.keeper = LeaseKeeper(
            self,
            self.search,
            first_search_ms=first_search_s * 1_000,
            on_report=self.reports.append,
            monotonic_s=lambda: self.now_s,
            now=self.now,
        )

    def now(self) -> datetime.datetime:
        return BEGAN + datetime.timedelta(seconds=self.now_s)

    # LeaseTopic
    skew_s: float | None = None

    def read(self) -> list[tuple[str, Lease | None]]:
        if self.failing:
            raise KafkaTimeoutError("away")
        if self.newer:
            raise NewerRecord("a lease of version 2")
        read, self.unread = self.unread, []
        return read

    def tell_lost(self, connections: Iterable[OpenConnection], reason: str) -> None:
        self.told += connections

    def forget(self, lease_ids: Iterable[str]) -> None:
        self.forgotten += lease_ids

    def close(self) -> None:
        self.closed = True

    # the engine
    def search(self, live: frozenset[str]) -> list[OpenConnection]:
        self.searches += 1
        self.now_s += self.search_takes_s
        self.unread += self.appended_during_search
        return [connection for connection in self.open if connection.lease_id not in live]

    def micro_batch(self, *, consumer_lag: int = 0) -> None:
        """Runs a micro-batch that begins now and reads the reported connections."""
        for connection in self.told:
            if connection in self.open:
                self.open.remove(connection)
        started = self.now().isoformat().replace("+00:00", "Z")
        self.keeper.observe(BatchProgress(batch_id=1, started=started, duration_ms=1, consumer_lag=consumer_lag))

    def renew(self, *lease_ids: str) -> None:
        self.unread += [(lease_id, LEASE) for lease_id in lease_ids]

    def pass_s(self, seconds: float, *renewed: str) -> None:
        """Lets seconds pass, with renewals and then a check in each."""
        for _ in range(round(seconds)):
            self.now_s += 1
            self.renew(*renewed)
            self.keeper.inspect()


def connection(client_id: str, lease_id: str, connection_id: int = 1) -> OpenConnection:
    return OpenConnection(client_id, connection_id, lease_id)


@pytest.mark.promise("gateway-dies")
def test_the_connections_of_an_expired_lease_are_ended_and_no_others() -> None:
    harness = KeeperHarness()
    harness.open = [connection("a", "dead"), connection("b", "live"), connection("c", "dead", 7)]
    harness.renew("dead", "live")
    harness.pass_s(2, "live")
    assert (harness.told, harness.searches) == ([], 0)
    harness.pass_s(2, "live")
    assert harness.told == [connection("a", "dead"), connection("c", "dead", 7)]
    assert harness.reports[-1].live == 1
    assert sum(report.expired for report in harness.reports) == 1
    assert sum(report.connections_ended for report in harness.reports) == 2


def test_a_lease_is_searched_for_until_a_complete_snapshot_has_none_of_it() -> None:
    harness = KeeperHarness()
    harness.open = [connection("a", "dead")]
    harness.renew("dead")
    harness.pass_s(4)
    assert harness.told == [connection("a", "dead")]
    harness.micro_batch(consumer_lag=5)  # not everything: another connection of it may be among the five
    harness.pass_s(8)
    assert (harness.forgotten, harness.open) == ([], [])
    harness.open = [connection("late", "dead")]
    harness.micro_batch()
    harness.pass_s(4)
    assert harness.told[-1] == connection("late", "dead")
    assert harness.forgotten == []
    harness.micro_batch()
    harness.pass_s(4)
    assert harness.forgotten == ["dead"]
    searches = harness.searches
    harness.pass_s(20)
    assert harness.searches == searches


def test_a_micro_batch_that_began_before_a_lease_expired_proves_nothing() -> None:
    harness = KeeperHarness()
    harness.renew("dead")
    harness.pass_s(1)
    harness.micro_batch()
    harness.pass_s(9)
    assert harness.forgotten == []


def test_a_gateway_that_starts_during_a_search_keeps_its_connections() -> None:
    """A gateway appends its lease before its first connection."""
    harness = KeeperHarness()
    harness.open = [connection("a", "dead"), connection("b", "new")]
    harness.appended_during_search = [("new", LEASE)]
    harness.renew("dead")
    harness.pass_s(4)
    assert harness.told == [connection("a", "dead")]


def test_time_in_which_kafka_or_this_process_stood_still_is_not_watched() -> None:
    harness = KeeperHarness()
    harness.open = [connection("a", "live")]
    harness.renew("live")
    harness.pass_s(1)
    harness.failing = True
    harness.now_s += 3_600
    with pytest.raises(KafkaTimeoutError):
        harness.keeper.inspect()
    harness.failing = False
    harness.now_s += 3_600
    harness.renew("live")
    harness.keeper.inspect()
    harness.pass_s(5, "live")
    assert (harness.searches, harness.told) == (0, [])


def test_an_ended_lease_is_forgotten_without_a_search() -> None:
    harness = KeeperHarness()
    harness.renew("a")
    harness.pass_s(1)
    harness.unread.append(("a", Lease(holder="gateway", duration_ms=2_000, ended=True)))
    harness.pass_s(10)
    assert (harness.forgotten, harness.searches) == (["a"], 0)


def test_the_first_search_finds_what_an_engine_before_this_one_left() -> None:
    harness = KeeperHarness(first_search_s=3)
    harness.open = [connection("a", "of long ago"), connection("b", "live")]
    harness.pass_s(2, "live")
    assert harness.searches == 0
    harness.pass_s(5, "live")
    assert (harness.searches, harness.told) == (1, [connection("a", "of long ago")])


def test_a_long_search_is_not_repeated_at_once_for_the_same_lease() -> None:
    harness = KeeperHarness()
    harness.search_takes_s = 4
    harness.renew("first")
    harness.pass_s(4)
    assert harness.searches == 1
    harness.pass_s(10)
    assert harness.searches == 1
    harness.renew("second")
    harness.pass_s(4)
    assert harness.searches == 2


def test_a_failure_is_tried_again() -> None:
    looked = threading.Event()
    harness = KeeperHarness()
    harness.failing = True
    with harness.keeper as keeper:
        keeper.start()
        harness.failing = False
        keeper._on_report = lambda report: looked.set()
        assert looked.wait(DEADLINE_S)
    assert harness.closed


def test_a_lease_of_a_newer_version_keeps_all_connections_open() -> None:
    harness = KeeperHarness(first_search_s=0)
    harness.open = [connection("a", "newer")]
    harness.newer = True
    with capture_logs() as logs, harness.keeper as keeper:
        keeper.start()
        wait_until(lambda: logs, "a line in the log")
    assert (logs[0]["event"], logs[0]["log_level"]) == ("leases_not_watched", "warning")
    assert "a lease of version 2" in logs[0]["error"]
    assert (harness.searches, harness.told) == (0, [])


def test_the_newest_renewal_tells_how_far_the_clock_is_off() -> None:
    harness = KeeperHarness()
    with capture_logs() as logs:
        for skew_s in (None, 7_200.5, None):
            harness.skew_s = skew_s
            harness.keeper.inspect()
    assert [report.skew_s for report in harness.reports] == [None, 7_200.5, None]
    assert [(line["event"], line["skew_s"]) for line in logs] == [("clock_off", 7_200.5)]


def test_it_says_whether_all_holders_send_wake_ups() -> None:
    harness = KeeperHarness()
    harness.unread = [("a", Lease(holder="gateway", duration_ms=2_000, wakes=True))]
    assert not harness.keeper.all_wake
    harness.pass_s(1)
    assert harness.keeper.all_wake
    harness.pass_s(1, "bridge")
    assert not harness.keeper.all_wake
