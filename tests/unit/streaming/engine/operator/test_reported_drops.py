"""streaming.engine.operator.reported_drops: what tasks report, and what the driver reads, without Spark."""

import pickle
from dataclasses import replace
from typing import cast

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from state.events import ConnectionLost
from state.settings import SessionSettings
from streaming.engine.operator.reported_drops import Drops, ReportedDrops
from streaming.engine.operator.session_operator import SessionOperator
from tests.unit.streaming.engine.operator.operator_host import SETTINGS, Host

SHORT_QUEUE = replace(
    SETTINGS,
    session=SessionSettings(max_inflight=1, max_mqueue_len=2, max_backlog_bytes=0, prefetch=0),
    ledger=False,
    receipts=False,
)


class StandInContext:
    """Makes the accumulator of a driver, whose number no other one has."""

    def accumulator(self, value: Drops, accum_param: AccumulatorParam[Drops]) -> Accumulator[Drops]:
        return Accumulator(id(self), value, accum_param)


def reported_drops() -> ReportedDrops:
    return ReportedDrops(cast(SparkContext, StandInContext()))


def run_task(accumulator: Accumulator[Drops], *reports: Drops) -> None:
    """Does what Spark does: the task adds to a zero value of its own, which the driver merges when the task has ended."""
    param = pickle.loads(pickle.dumps(accumulator.accum_param))
    in_task = param.zero(accumulator.value)
    for report in reports:
        in_task = param.addInPlace(in_task, report)
    accumulator += pickle.loads(pickle.dumps(in_task))


def dropped(operator: SessionOperator) -> Drops:
    assert operator.drops is not None
    return operator.drops


def test_a_session_reports_what_it_drops_for_a_connected_client() -> None:
    host = Host(SHORT_QUEUE)
    host.run(host.connected(), *(host.message() for _ in range(8)))
    assert dropped(host.operator) == Drops(connected=dropped(host.operator).connected, clients=("c",))
    assert dropped(host.operator).connected == {"maxlen": 5}, "1 in flight and 2 in the queue"


def test_drops_for_a_client_that_is_gone_are_counted_apart() -> None:
    host = Host(SHORT_QUEUE)
    host.run(host.connected())
    host.run(host.event(ConnectionLost(connection_id=1)), *(host.message() for _ in range(3)))
    assert dropped(host.operator) == Drops(offline=dropped(host.operator).offline)
    assert dropped(host.operator).offline == {"maxlen": 1}


def test_an_activation_reports_only_its_own_drops() -> None:
    host = Host(SHORT_QUEUE)
    host.run(host.connected(), *(host.message() for _ in range(8)))
    host.run(host.due())
    assert host.operator.drops is None


def test_drops_add_up_and_are_popped_once() -> None:
    reported = reported_drops()
    one, two = Host(SHORT_QUEUE), Host(SHORT_QUEUE)
    for host, messages in (one, 4), (two, 5):
        host.run(host.connected(), *(host.message() for _ in range(messages)))
    run_task(reported.accumulator, dropped(one.operator), dropped(two.operator))
    run_task(reported.accumulator, replace(dropped(one.operator), clients=("d",)))
    popped = reported.pop()
    assert popped.connected == {"maxlen": 4}
    assert popped.clients == ("c", "d")
    assert reported.pop() == Drops()
    run_task(reported.accumulator, dropped(one.operator))
    assert (popped.connected, reported.pop().connected) == ({"maxlen": 4}, {"maxlen": 1})


def test_a_report_names_the_newest_clients() -> None:
    reported = reported_drops()
    run_task(reported.accumulator, *(Drops(clients=(name,)) for name in "abcdeb"))
    assert reported.pop().clients == ("d", "e", "b")
