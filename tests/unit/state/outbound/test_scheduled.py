"""state.outbound.scheduled: messages in the order of their times."""

from hypothesis import given
from hypothesis import strategies as st

from state.outbound.scheduled import ScheduledMessages
from state.records.messages import message_bytes
from tests.scenarios.scenario import message


def of(*times: int) -> ScheduledMessages:
    scheduled = ScheduledMessages()
    for number, time in enumerate(times):
        scheduled.add(message(f"m{number}", headers=(("deliver-at", b"%d" % time), ("collapse-key", b"%d" % (number % 3)))))
    return scheduled


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 5))
def test_what_is_due_leaves_in_order_and_the_rest_stays(times: list[int], now: int) -> None:
    scheduled = of(*times)
    in_order = sorted(range(len(times)), key=lambda number: (times[number], number))
    assert [waiting.message_id for waiting in scheduled] == [f"m{number}" for number in in_order]
    due = scheduled.pop_due(now)
    assert [waiting.message_id for waiting in due] == [f"m{number}" for number in in_order if times[number] <= now]
    left = [time for time in times if time > now]
    assert (len(scheduled), scheduled.next_due_ms()) == (len(left), min(left, default=None))
    assert scheduled.size_bytes == sum(message_bytes(waiting) for waiting in scheduled)
    assert len(scheduled.pop_all()) == len(left)
    assert (len(scheduled), scheduled.size_bytes, scheduled.next_due_ms()) == (0, 0, None)


def test_a_message_leaves_by_its_id_or_its_key() -> None:
    scheduled = of(4, 3, 2, 1, 0)
    assert [waiting.message_id for waiting in scheduled.pop_key(b"0")] == ["m3", "m0"]
    assert [waiting.message_id for waiting in scheduled.pop_id("m2")] == ["m2"]
    assert (scheduled.pop_key(None), scheduled.pop_id("m2")) == ([], [])
    assert [waiting.message_id for waiting in scheduled] == ["m4", "m1"]
