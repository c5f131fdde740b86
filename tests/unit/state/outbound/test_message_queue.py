"""Tests state/outbound/message_queue.py alone; tests/spec/test_queue.py has the session's use of it."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.dead_letters.dead_letter import with_death
from state.model import Outcome, PublishProperties
from state.outbound.inflight_window import Delivery
from state.outbound.message_queue import STARVATION_LIMIT, MessageQueue
from tests.scenarios.scenario import message


def delivery(order: int, *, priority: int = 0, qos: int = 1, size: int = 1, expires_at_ms: int | None = None) -> Delivery:
    taken = message(f"m{order}", qos=qos, priority=priority, payload=b"x" * size, expires_at_ms=expires_at_ms)
    return Delivery(message=taken, qos=taken.qos, order=order)


def rank(one: Delivery) -> tuple[bool, int, int]:
    return (one.qos > 0, one.message.priority, one.order)


def unlimited() -> MessageQueue:
    return MessageQueue(max_len=0, max_bytes=0)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.lists(st.booleans(), max_size=400))
def test_no_waiting_priority_is_passed_over_more_often_than_the_limit(priorities: list[int], steps: list[bool]) -> None:
    """Appends and pops in any order: each priority that waits is served within STARVATION_LIMIT messages of higher ones."""
    queue = unlimited()
    waiting: Counter[int] = Counter()
    passed_over: Counter[int] = Counter()
    arriving = [delivery(order, priority=priority) for order, priority in enumerate(priorities)]
    for append in [*steps, *[True] * len(arriving), *[False] * len(arriving)]:
        if append and arriving:
            queue.append(arriving[0])
            waiting[arriving.pop(0).message.priority] += 1
        elif queue:
            served = queue.pop().message.priority
            waiting[served] -= 1
            passed_over[served] = 0
            for lower in range(served):
                passed_over[lower] = passed_over[lower] + 1 if waiting[lower] else 0
                assert passed_over[lower] <= STARVATION_LIMIT
    assert not queue


def test_all_that_is_stored_of_a_message_counts_like_payload() -> None:
    properties = PublishProperties(content_type="t" * 10, user_properties=(("name", "v" * 100),))
    taken = message("m", topic="ü", payload=b"x" * 7, properties=properties, headers=(("träce", b"h" * 200),))
    large = Delivery(message=taken, qos=taken.qos, order=1)
    assert large.size_bytes == 2 + 7 + (3 + 10) + (1 + 2 + 4 + 2 + 100) + (32 + 6 + 200)
    queue = MessageQueue(max_len=10, max_bytes=400)
    queue.append(large)
    assert queue.size_bytes == large.size_bytes
    assert queue.would_overflow(large.size_bytes)
    assert queue.make_room(Delivery(message=taken, qos=taken.qos, order=2)) == [large]
    assert queue.size_bytes == 0


@pytest.mark.no_cover  # it takes long, and reaches no line of its own
def test_empty_headers_and_deaths_are_not_free() -> None:
    many = message("m", payload=b"1", headers=(("", b""),) * 500_000)
    queue = unlimited()
    queue.append(Delivery(message=many, qos=many.qos, order=1))
    assert queue.size_bytes > len(msgspec.msgpack.encode(many)) > 1_900_000
    dead = with_death(many, queue="q" * 500, reason=Outcome.EXPIRED, time_ms=7, exchange="x")
    assert Delivery(message=dead, qos=dead.qos, order=2).size_bytes > queue.size_bytes + 500


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9)), max_size=60), st.integers(0, 20))
def test_its_counts_are_those_of_its_content_and_order_is_kept(drawn: list[tuple[int, int, int]], max_len: int) -> None:
    queue = MessageQueue(max_len=max_len, max_bytes=50)
    dropped: list[Delivery] = []
    for order, (priority, qos, size) in enumerate(drawn):
        newcomer = delivery(order, priority=priority, qos=qos, size=size)
        held = list(queue)
        leaving = queue.make_room(newcomer)
        dropped += leaving
        if newcomer in leaving:
            assert leaving == [newcomer]
            assert list(queue) == held, "a newcomer that is not let in pushes nobody out"
        else:
            queue.append(newcomer)
            assert leaving == sorted([*held, newcomer], key=rank)[: len(leaving)], "not the lowest ranks, in their order"
        assert not max_len or len(queue) <= max_len
    kept = list(queue)
    assert len(kept) == len(queue)
    assert sum(len(d.message.topic) + len(d.message.payload) for d in kept) == queue.size_bytes
    assert not max_len or queue.size_bytes <= 50
    assert sorted(d.order for d in kept + dropped) == list(range(len(drawn)))
    assert kept == sorted(kept, key=lambda d: (-d.message.priority, d.order))
    assert [d.order for d in queue.pop_qos0()] == [d.order for d in kept if d.message.qos == 0]
    assert queue.pop_qos0() == []
    assert [d.order for d in queue.remove(list(queue))] == [d.order for d in kept if d.message.qos > 0]
    assert len(queue) == queue.size_bytes == 0


def test_messages_that_come_back_find_their_old_places() -> None:
    queue = unlimited()
    taken = [delivery(order) for order in range(5)]
    for one in taken:
        queue.append(one)
    away = [queue.pop() for _ in range(3)]
    for one in (away[1], away[2], away[0]):
        queue.put_back(one)
    assert [one.order for one in queue] == [0, 1, 2, 3, 4]


def test_a_message_may_come_back_to_an_empty_queue_and_to_its_end() -> None:
    queue = unlimited()
    queue.put_back(delivery(7))
    queue.put_back(delivery(9))
    assert [one.order for one in queue] == [7, 9]


def test_a_queue_within_its_limits_is_not_trimmed() -> None:
    queue = MessageQueue(max_len=2, max_bytes=4)
    assert queue.trim(newest_first=False) == []
    for order in range(2):
        queue.append(delivery(order))
    assert queue.trim(newest_first=True) == []


def test_a_queue_above_its_limits_gives_up_the_lowest_rank_or_the_newest() -> None:
    def full() -> MessageQueue:
        queue = MessageQueue(max_len=3, max_bytes=0)
        for order, (qos, priority) in enumerate([(1, 0), (1, 9), (0, 9), (1, 0), (2, 0)]):
            queue.append(delivery(order, qos=qos, priority=priority))
        return queue

    queue = full()
    assert [one.order for one in queue.trim(newest_first=False)] == [2, 0]
    assert [one.order for one in queue] == [1, 3, 4]
    assert [one.order for one in full().trim(newest_first=True)] == [4, 3]


def test_the_next_expiry_is_the_earliest_and_only_the_expired_are_taken() -> None:
    queue = unlimited()
    for order, expires_at_ms in enumerate((None, 30, 10, 20)):
        queue.append(delivery(order, expires_at_ms=expires_at_ms))
    assert queue.next_expiry_ms() == 10
    assert [one.order for one in queue.remove(queue.expired(20))] == [2, 3]
    assert queue.next_expiry_ms() == 30
    assert [one.order for one in queue.remove(queue.expired(30))] == [1]
    assert queue.next_expiry_ms() is None
