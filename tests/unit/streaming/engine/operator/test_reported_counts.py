"""streaming.engine.operator.reported_counts: what tasks report, and what the driver reads, without Spark."""

import pickle
from collections import Counter
from dataclasses import replace
from typing import cast

import pytest
from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from state.events import ClientConnected
from streaming.engine.operator.reported_counts import CLIENTS_QUARANTINED, Counts, ReportedCounts
from streaming.engine.operator.session_operator import TaskOperator
from tests.unit.streaming.engine.operator.operator_host import SETTINGS, Host, fail_on

TRICKY = b'"outcome":"sent","transition":"replayed"'


class StandInContext:
    """Makes the accumulator of a driver, whose number no other one has."""

    def accumulator(self, value: Counts, accum_param: AccumulatorParam[Counts]) -> Accumulator[Counts]:
        return Accumulator(id(self), value, accum_param)


def reported_counts() -> ReportedCounts:
    return ReportedCounts(cast(SparkContext, StandInContext()))


def counting(host: Host) -> ReportedCounts:
    """Returns what the tasks of a host report from now on."""
    reported = reported_counts()
    host.operator = TaskOperator(host.operator, counts=reported.accumulator)  # type: ignore[assignment]
    return reported


def test_outcomes_are_counted_by_receipts_whatever_ids_say() -> None:
    host = Host()
    reported = counting(host)
    host.run(host.connected(), *(host.message(mqtt_qos=b"0", message_id=TRICKY + b"%d" % number) for number in range(3)))
    host.run(host.message(mqtt_qos=b"7"), host.message(mqtt_qos=b"0"))
    assert reported.pop() == {"sent": 4, "invalid": 1}


def test_without_receipts_and_ledger_there_is_nothing_to_count() -> None:
    host = Host(replace(SETTINGS, receipts=False, ledger=False))
    reported = counting(host)
    host.run(host.connected(), host.message(mqtt_qos=b"0"))
    assert reported.pop() == {}


def test_resends_are_counted_by_their_rows_in_the_ledger() -> None:
    host = Host()
    kept = {"commands_partition": 1, "clean_start": False, "session_expiry_interval_s": 3_600}
    host.run(host.event(ClientConnected(connection_id=1, **kept)), host.message(message_id=TRICKY), host.message())
    reported = counting(host)
    host.run(host.event(ClientConnected(connection_id=2, **kept)))
    assert reported.pop() == {"replayed": 2}


def test_a_client_whose_quarantine_begins_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    host.run(host.connected())
    reported = counting(host)
    fail_on(monkeypatch, lambda _: True)
    host.run(host.due())
    host.run(host.message())
    assert reported.pop()[CLIENTS_QUARANTINED] == 1


def test_counts_of_tasks_add_up_and_are_popped_once() -> None:
    reported = reported_counts()
    param = pickle.loads(pickle.dumps(reported.accumulator.accum_param))
    for counts in Counter(sent=2), Counter(sent=1, resent=1):
        in_task = param.addInPlace(param.zero(reported.accumulator.value), counts)
        reported.accumulator += pickle.loads(pickle.dumps(in_task))
    popped = reported.pop()
    assert (popped, reported.pop()) == ({"sent": 3, "resent": 1}, {})
    reported.accumulator += Counter(sent=1)
    assert (popped["sent"], reported.pop()) == (3, {"sent": 1})
