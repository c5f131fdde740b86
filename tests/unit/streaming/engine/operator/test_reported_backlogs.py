"""streaming.engine.operator.reported_backlogs: what tasks report, and what the driver sums, without Spark."""

import pickle
from dataclasses import replace
from typing import cast

import pytest
from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from state.events import ClientConnected, ConnectionLost, PubAckReceived
from state.setting import KIB, MIB
from state.settings import SessionSettings
from streaming.engine.operator.reported_backlogs import LARGE_BYTES, Backlogs, ReportedBacklogs, backlog_of
from streaming.engine.operator.session_operator import TaskOperator
from streaming.engine.operator.state_row import STATE_ROW_VERSION, StateRow
from tests.unit.streaming.engine.operator.operator_host import NOW, SETTINGS, Host, fail_on, is_poison

PAYLOAD = b"x" * 200 * KIB
BUSY = replace(SETTINGS, session=SessionSettings(max_inflight=1, prefetch=0))
ROW = StateRow(
    version=STATE_ROW_VERSION,
    connected=True,
    inflight=0,
    queued=9,
    queued_bytes=LARGE_BYTES + 1,
    oldest_unacked_ms=None,
    next_deadline_ms=7,
    blob=b"",
)


class StandInContext:
    """Makes the accumulator of a driver, whose number no other one has."""

    def accumulator(self, value: Backlogs, accum_param: AccumulatorParam[Backlogs]) -> Accumulator[Backlogs]:
        return Accumulator(id(self), value, accum_param)


def reported_backlogs() -> ReportedBacklogs:
    return ReportedBacklogs(cast(SparkContext, StandInContext()))


def run_task(accumulator: Accumulator[Backlogs], *reports: Backlogs) -> None:
    """Does what Spark does: the task adds to a zero value of its own, which the driver merges when the task has ended."""
    param = pickle.loads(pickle.dumps(accumulator.accum_param))
    in_task = param.zero(accumulator.value)
    for report in reports:
        in_task = param.addInPlace(in_task, report)
    accumulator += pickle.loads(pickle.dumps(in_task))


def busy_host(settings: SessionSettings = BUSY.session) -> Host:
    """A connected client with a queue of eight large messages, and a session that outlasts its connection."""
    host = Host(replace(BUSY, session=settings))
    connected = ClientConnected(connection_id=1, commands_partition=1, clean_start=False, session_expiry_interval_s=3_600)
    host.run(host.event(connected), *(host.message(PAYLOAD) for _ in range(9)))
    return host


@pytest.mark.parametrize("stored_bytes", [0, LARGE_BYTES + 1])
def test_a_large_queue_of_a_client_that_keeps_up_is_reported(stored_bytes: int) -> None:
    assert backlog_of(ROW, stored_bytes=stored_bytes, keeps_up=True) == LARGE_BYTES + 1


@pytest.mark.parametrize(("row", "keeps_up"), [(ROW, False), (ROW._replace(queued_bytes=LARGE_BYTES), True), (None, True)])
def test_another_session_reports_only_that_its_stored_queue_was_large(row: StateRow | None, keeps_up: bool) -> None:
    assert backlog_of(row, stored_bytes=LARGE_BYTES, keeps_up=keeps_up) is None
    assert backlog_of(row, stored_bytes=LARGE_BYTES + 1, keeps_up=keeps_up) == 0


def test_a_called_session_reports_its_queue_until_it_is_short() -> None:
    host = busy_host()
    reports = [host.operator.backlog_bytes]
    for packet_id in range(1, 5):
        host.run(host.event(PubAckReceived(connection_id=1, packet_id=packet_id)))
        reports.append(host.operator.backlog_bytes)
    sizes = [(report or 0) // len(PAYLOAD) for report in reports]
    assert (sizes, reports[3:]) == ([8, 7, 6, 0, 0], [0, None])


def test_the_queue_of_a_client_that_stands_still_does_not_count() -> None:
    session = replace(BUSY.session, max_mqueue_bytes=64 * MIB)
    host = busy_host(session)
    host.run(host.event(ConnectionLost(connection_id=1)))
    assert host.operator.backlog_bytes, "it has the time to come back"
    for confirmed_ms in (0, 5_000):
        host.run(host.due(), now_ms=NOW + session.progress_timeout_ms + confirmed_ms)
    assert host.value is not None
    assert StateRow(*host.value).queued_bytes > LARGE_BYTES
    assert host.operator.backlog_bytes == 0


def test_a_session_that_fails_on_one_event_reports_its_queue_too(monkeypatch: pytest.MonkeyPatch) -> None:
    host = busy_host()
    fail_on(monkeypatch, is_poison)
    host.run(host.message(b"poison"))
    assert host.operator.backlog_bytes == StateRow(*(host.value or ())).queued_bytes


def test_a_quarantined_client_has_no_queue_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    host = busy_host()
    fail_on(monkeypatch, lambda _: True)
    host.run(host.due())
    assert host.operator.backlog_bytes == 0


def test_a_task_adds_the_reports_of_its_sessions() -> None:
    reported, host = reported_backlogs(), busy_host()
    task = TaskOperator(host.operator, backlogs=reported.accumulator)
    host.operator, operator = task, host.operator  # type: ignore[assignment]
    host.run(host.due())
    assert reported.total_bytes() == operator.backlog_bytes
    for packet_id in range(1, 5):
        host.run(host.event(PubAckReceived(connection_id=1, packet_id=packet_id)))
    assert reported.total_bytes() == 0


def test_the_newest_report_of_a_client_wins_and_the_others_are_summed() -> None:
    reported = reported_backlogs()
    run_task(reported.accumulator, {"a": 5, "b": 7}, {"b": 8})
    run_task(reported.accumulator, {"a": 6})
    assert (reported.total_bytes(), reported.total_bytes()) == (14, 14)
    run_task(reported.accumulator, {"b": 0})
    assert reported.total_bytes() == 6
    assert reported.accumulator.value == {"a": 6}, "a client with a short queue takes no memory"


def test_a_task_that_is_executed_again_changes_nothing() -> None:
    reported = reported_backlogs()
    for _ in range(2):
        run_task(reported.accumulator, {"a": 5}, {"b": 7})
    assert reported.total_bytes() == 12


def test_a_task_begins_without_the_reports_of_others() -> None:
    reported = reported_backlogs()
    run_task(reported.accumulator, {"a": 5})
    param = reported.accumulator.accum_param
    assert param.zero(reported.accumulator.value) == {}
    assert reported.total_bytes() == 5


def test_forgotten_queues_do_not_count() -> None:
    reported = reported_backlogs()
    run_task(reported.accumulator, {"a": 5})
    reported.forget()
    run_task(reported.accumulator, {"b": 7})
    assert reported.total_bytes() == 7
