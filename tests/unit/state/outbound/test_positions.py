"""Tests state/outbound/fast_path/positions.py alone; tests/spec/fast_path/test_adoption.py has the session's use of it."""

from state.model import Position, numbered_partition
from state.outbound.fast_path.positions import Positions


def test_the_latest_position_is_in_the_partition_handled_last() -> None:
    positions = Positions()
    assert positions.latest is None
    for partition, offset in ((3, 7), (3, 5), (0, 2)):
        assert positions.mark_read(Position(partition, offset))
    assert positions.latest == Position(0, 2)
    assert positions.mark_read(Position(3, 6))
    assert positions.latest == Position(3, 7)
    assert (positions.handled_in(3), positions.handled_in(1)) == (7, -1)


def test_what_is_beyond_was_not_handled_yet() -> None:
    positions = Positions()
    assert positions.is_beyond(Position(0, 0))
    positions.mark_read(Position(0, 4))
    assert [positions.is_beyond(Position(0, offset)) for offset in (3, 4, 5)] == [False, False, True]
    assert positions.is_beyond(Position(1, 0))


def test_an_adopted_message_is_known_once_and_only_it() -> None:
    positions = Positions()
    positions.adopt(Position(0, 5), is_granted=True)
    positions.adopt(Position(0, 8), is_granted=True)
    positions.adopt(Position(1, 2), is_granted=True)
    assert [positions.mark_read(Position(0, offset)) for offset in (4, 5, 6, 8, 8)] == [True, False, True, False, True]
    assert list(positions.unread) == [Position(1, 2)]


def test_what_kafka_has_not_any_more_is_not_waited_for() -> None:
    positions = Positions()
    positions.adopt(Position(0, 5), is_granted=True)
    positions.adopt(Position(0, 8), is_granted=True)
    assert positions.mark_read(Position(0, 6))
    assert list(positions.unread) == [Position(0, 8)]


def test_what_has_left_the_queue_counts_in_the_partition_of_the_newest() -> None:
    positions = Positions()
    positions.mark_read(Position(1, 4))
    positions.mark_read(Position(0, 9))
    positions.settle([Position(1, 4)])
    assert positions.settled is None, "it is of another partition than the newest message"
    positions.settle([Position(0, 9), Position(0, 7)])
    assert positions.settled == Position(0, 9)
    positions.mark_read(Position(1, 5))
    positions.settle([])
    assert positions.settled == Position(1, 5), "the newest message is of another partition now"


def test_nothing_is_settled_once_the_positions_are_forgotten() -> None:
    positions = Positions()
    positions.mark_read(Position(1, 4))
    positions.settle([Position(1, 4)])
    positions.forget()
    assert positions.settled is None
    positions.mark_read(Position(0, 2))
    positions.settle([])
    assert positions.settled is None, "the newest message waits"


def test_unread_messages_of_a_topic_that_is_gone_are_not_waited_for() -> None:
    positions = Positions()
    positions.forget_recreated(2)
    old, new = Position(7, 5), Position(numbered_partition(7, 2), 0)
    positions.adopt(old, is_granted=True)
    positions.adopt(new, is_granted=True)
    positions.forget_recreated(0)
    assert list(positions.unread) == [old, new]
    positions.forget_recreated(2)
    assert list(positions.unread) == [new]
    assert positions.handled_in(7) == 5, "what a gateway has sent of the old topic may still be read"
    assert positions.mark_read(Position(numbered_partition(7, 2), 5)), "another message than the one at the old offset"


def test_what_was_adopted_without_a_grant_is_handled_when_it_is_read() -> None:
    positions = Positions()
    positions.adopt(Position(0, 5), is_granted=False)
    assert (positions.is_beyond(Position(0, 5)), positions.latest) == (True, None), "an earlier one may be unread"
    assert positions.mark_read(Position(0, 4))
    assert not positions.mark_read(Position(0, 5))
    assert positions.latest == Position(0, 5)


def test_the_message_before_one_that_was_sent_is_missing_if_it_is_neither_handled_nor_adopted() -> None:
    positions = Positions()
    positions.adopt(Position(0, 5), is_granted=False)
    assert [positions.is_missing(Position(0, offset)) for offset in (-1, 4, 5)] == [False, True, False]
    positions.mark_read(Position(0, 5))
    assert [positions.is_missing(Position(0, offset)) for offset in (4, 5, 6)] == [False, False, True]
