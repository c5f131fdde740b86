import asyncio
from typing import cast

import pytest
from structlog.testing import capture_logs

from sinks.bridge.membership import GroupMembership
from sinks.kafka.tail import CommandListener
from tests.support.waiting import until


class Tail:
    """A CommandTail that keeps what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self, listener: CommandListener) -> None:
        self.calls.append("start")

    def leave(self) -> None:
        self.calls.append("leave")

    async def close(self, timeout_s: float) -> None:
        self.calls.append("close")


def membership(tail: Tail, *, leave_after_s: float = 0.0) -> GroupMembership:
    return GroupMembership(tail, cast(CommandListener, None), leave_after_s=leave_after_s)


async def timers_have_fired() -> None:
    """Returns after every timer that was due when it is called."""
    tail = Tail()
    other = membership(tail)
    other.broker_up()
    other.broker_down()
    await until(lambda: "leave" in tail.calls, "another bridge leaves")


async def test_a_bridge_that_never_had_its_broker_is_in_no_group() -> None:
    tail = Tail()
    membership(tail).broker_down()
    await timers_have_fired()
    assert tail.calls == []


@pytest.mark.promise("bridge-without-broker")
async def test_it_leaves_once_for_each_outage_and_joins_again() -> None:
    tail = Tail()
    group = membership(tail)
    group.broker_up()
    group.broker_up()
    assert tail.calls == ["start"]
    with capture_logs() as logs:
        for _attempt in range(3):
            group.broker_down()
            await timers_have_fired()
        assert tail.calls == ["start", "leave"]
        group.broker_up()
    assert tail.calls == ["start", "leave", "start"]
    ours = [(log["event"], log["reason"]) for log in logs]
    assert ours.count(("group_joined", "connected to the broker")) >= 1
    assert ours.count(("group_left", "the broker has been away for 0 s")) >= 1


async def test_a_short_outage_moves_no_partitions() -> None:
    tail = Tail()
    group = membership(tail)
    group.broker_up()
    group.broker_down()
    group.broker_up()
    await timers_have_fired()
    assert tail.calls == ["start"]


async def test_a_bridge_that_stops_leaves_with_its_tail() -> None:
    tail = Tail()
    group = membership(tail)
    group.broker_up()
    group.broker_down()
    group.stop()
    await timers_have_fired()
    assert tail.calls == ["start"]


async def test_the_time_runs_from_the_first_connection_that_ends() -> None:
    tail = Tail()
    group = membership(tail, leave_after_s=0.05)
    group.broker_up()
    loop = asyncio.get_running_loop()
    group.broker_down()
    first = loop.time()
    while "leave" not in tail.calls:
        assert loop.time() - first < 60
        group.broker_down()
        await asyncio.sleep(0.001)
