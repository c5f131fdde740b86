"""What is learned from the requests of a kafka-python producer as they pass."""

from functools import partial
from typing import Any

from kafka.errors import KafkaConnectionError, NodeNotReadyError, RequestTimedOutError
from kafka.future import Future
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.record.memory_records import MemoryRecordsBuilder

from inflight.producer.model import Cause
from inflight.producer.request_watch import FailedTry, RecordKey, RequestWatch

MESSAGE_TOO_LARGE = 10
NOT_LEADER = 6
REQUEST_TIMED_OUT = 7
NOT_ENOUGH_REPLICAS = 19
DUPLICATE_SEQUENCE = 46
OUT_OF_ORDER_SEQUENCE = 45


def key(message_id: str) -> RecordKey:
    return RecordKey(b"client", message_id.encode())


def request(*message_ids: str) -> Any:
    """A produce request with a batch for each partition; the n-th id is in partition n."""
    partitions = []
    for index, message_id in enumerate(message_ids):
        builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=10_000)
        for part in message_id.split("+"):
            builder.append(timestamp=1, key=b"client", value=b"x", headers=[("message-id", part.encode())])
        builder.close()
        partitions.append(ProduceRequest.TopicProduceData.PartitionProduceData(index=index, records=builder.buffer()))
    return ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=1,
        topic_data=[ProduceRequest.TopicProduceData(name="messages", partition_data=partitions)],
    )


def response(*codes: int) -> Any:
    partition = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
    answers = [partition(index=index, error_code=code, base_offset=100) for index, code in enumerate(codes)]
    return ProduceResponse(
        responses=[ProduceResponse.TopicProduceResponse(name="messages", partition_responses=answers)], throttle_time_ms=0
    )


def verdict(failure: FailedTry) -> tuple[Cause, bool, bool]:
    return failure.cause, failure.answered, failure.permanent


class Watched:
    def __init__(self) -> None:
        self.failures: list[FailedTry] = []
        self.watch = RequestWatch(self.failures.append)

    def write(self, *message_ids: str) -> Future:
        answer = Future()
        self.watch.written(request(*message_ids), answer)
        return answer


def test_a_request_that_succeeds_says_nothing() -> None:
    watched = Watched()
    watched.write("one+two").success(response(0))
    assert watched.failures == []


def test_a_lost_connection_leaves_every_record_of_the_request_in_doubt() -> None:
    watched = Watched()
    watched.write("one+two", "three").failure(KafkaConnectionError("reset"))
    assert [failure.record for failure in watched.failures] == [key("one"), key("two"), key("three")]
    assert {verdict(failure) for failure in watched.failures} == {(Cause.NETWORK, False, False)}


def test_a_request_that_is_not_answered_in_time_is_a_time_out() -> None:
    watched = Watched()
    watched.write("one").failure(RequestTimedOutError("30 s"))
    assert watched.failures[0].cause is Cause.TIME_OUT
    assert not watched.failures[0].answered


def test_a_request_that_was_never_written_is_no_attempt() -> None:
    watched = Watched()
    watched.write("one").failure(NodeNotReadyError(1))
    assert watched.failures == []


def test_each_partition_has_an_answer_of_its_own() -> None:
    watched = Watched()
    codes = (0, NOT_ENOUGH_REPLICAS, MESSAGE_TOO_LARGE, DUPLICATE_SEQUENCE, NOT_LEADER, REQUEST_TIMED_OUT, OUT_OF_ORDER_SEQUENCE)
    watched.write("fine", "few", "large", "twice", "moved", "late", "other-id").success(response(*codes))
    found = {failure.record.message_id.decode(): verdict(failure) for failure in watched.failures}
    assert found == {
        "few": (Cause.BROKER, True, False),
        "large": (Cause.REJECTED, True, True),
        "late": (Cause.BROKER, False, False),
        "other-id": (Cause.BROKER, True, False),
    }


def test_a_record_that_was_given_up_on_the_wire_is_told_its_place_when_the_answer_comes() -> None:
    watched = Watched()
    answer = watched.write("one+two", "three", "four")
    told: dict[str, tuple[int, int] | None] = {}
    for message_id in ("two", "three", "four"):
        assert watched.watch.follow(key(message_id), partial(told.__setitem__, message_id))
    assert not watched.watch.follow(key("unknown"), told.clear)
    assert told == {}
    answer.success(response(0, 0, NOT_ENOUGH_REPLICAS))
    assert told == {"two": (0, 101), "three": (1, 100), "four": None}
    assert [verdict(failure) for failure in watched.failures] == [(Cause.BROKER, True, False)]
    assert not watched.watch.follow(key("two"), told.clear), "it is not on the wire any more"


def test_a_connection_that_is_lost_is_an_answer_for_who_follows_a_record() -> None:
    watched = Watched()
    answer = watched.write("one")
    told: list[tuple[int, int] | None] = []
    assert watched.watch.follow(key("one"), lambda place: told.append(place))
    answer.failure(KafkaConnectionError("reset"))
    assert told == [None]
    assert verdict(watched.failures[0]) == (Cause.NETWORK, False, False), "told before: the record is in doubt"


def test_a_record_whose_connection_was_lost_is_not_on_the_wire_any_more() -> None:
    watched = Watched()
    answer = watched.write("one")
    answer.failure(KafkaConnectionError("reset"))
    assert watched.failures[0].record == key("one")
    assert not watched.watch.follow(key("one"), lambda place: None)
