"""sinks.mqtt.connection.known_marks."""

from sinks.mqtt.connection import known_marks
from sinks.mqtt.connection.known_marks import KnownMarks
from state.model import QoS, Routing
from state.records.routing import SourceKind, source_number

SINGLE, SHARED = (source_number(kind, 0, "id") for kind in (SourceKind.UPLINK, SourceKind.RETAINED))


def routing(source: int, mark: int) -> Routing:
    return Routing(source=source, mark=mark, connection_id=1, version=1, qos=QoS(1))


def sent(source: int, *messages: tuple[int, str]) -> KnownMarks:
    marks = KnownMarks()
    for mark, message_id in messages:
        marks.sent(routing(source, mark), message_id)
    return marks


def test_the_highest_mark_tells_a_copy_of_a_source_with_one_message_for_each() -> None:
    marks = sent(SINGLE, (4, "a"), (3, "late"))
    assert [marks.is_copy(routing(SINGLE, mark), "b") for mark in (3, 4, 5)] == [True, True, False]
    assert marks.is_copy(routing(SHARED, 1), "a") is False, "marks are those of a source"


def test_messages_that_share_a_mark_are_told_apart() -> None:
    marks = sent(SHARED, (4, "a"), (4, "b"))
    assert [marks.is_copy(routing(SHARED, 4), name) for name in "abc"] == [True, True, False]
    assert [marks.is_copy(routing(SHARED, mark), "a") for mark in (3, 5)] == [True, False]


def test_only_messages_of_the_highest_mark_are_kept() -> None:
    marks = sent(SHARED, (4, "a"), (5, "b"), (4, "late"))
    assert [marks.is_copy(routing(SHARED, mark), "a") for mark in (4, 5)] == [True, False]


def test_the_session_tells_what_it_may_have_handled() -> None:
    marks = sent(SHARED, (4, "a"))
    marks.handled([(SHARED, 4), (SINGLE, 2)])
    assert marks.is_copy(routing(SHARED, 4), "a") is True, "the grant says nothing new"
    marks.handled([(SHARED, 5)])
    assert marks.is_copy(routing(SHARED, 5), "a") is None
    marks.sent(routing(SHARED, 5), "b")
    assert marks.is_copy(routing(SHARED, 5), "b") is None, "there may be others"
    assert marks.is_copy(routing(SINGLE, 2), "a") is True


def test_what_may_have_been_handled_elsewhere_is_forgotten() -> None:
    marks = sent(SHARED, (4, "a"))
    marks.forget_messages()
    assert [marks.is_copy(routing(SHARED, mark), "a") for mark in (3, 4, 5)] == [True, None, False]


def test_more_messages_than_are_kept_are_left_to_the_session() -> None:
    marks = sent(SHARED, *((4, str(number)) for number in range(known_marks.MOST_DIGESTS)))
    assert marks.is_copy(routing(SHARED, 4), "0") is None
