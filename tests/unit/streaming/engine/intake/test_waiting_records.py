import pytest

from streaming.engine.intake.batch_size import Chunk
from streaming.engine.intake.waiting_records import chunks


def record(offset: int, key: int, value: int, headers: str = "RecordHeaders(headers = [], isReadOnly = false)") -> str:
    """As kafka-clients 3.9 has it."""
    return (
        f"ConsumerRecord(topic = p.messages, partition = 1, leaderEpoch = 0, offset = {offset}, CreateTime = 1700000000000, "
        f"deliveryCount = null, serialized key size = {key}, serialized value size = {value}, headers = {headers}, "
        "key = [B@1b2c, value = [B@3d4e)"
    )


def text(*records: str) -> str:
    return f"[{', '.join(records)}]"


def test_the_sizes_of_the_records_of_a_poll_are_read_from_their_text() -> None:
    poll = text(record(5, 10, 100_000), record(6, -1, 200_000), record(9, 3, -1))
    first, second, third = chunks(poll, count=3, end=11, chunk_bytes=1_000)[:3]
    assert (first.end, second.end, third.end) == (6, 7, 11)
    assert 100_010 < first.size_bytes < 100_500
    assert 200_000 < second.size_bytes < 200_500
    assert third.size_bytes < 500


def test_small_records_share_a_chunk() -> None:
    poll = text(*(record(number, 5, 95) for number in range(100)))
    (only,) = chunks(poll, count=100, end=100, chunk_bytes=1 << 20)
    assert only.end == 100
    assert 100 * 100 < only.size_bytes < 100 * 500


def test_headers_count_with_the_length_of_their_text() -> None:
    header = "RecordHeaders(headers = [RecordHeader(key = k, value = [" + ", ".join(["1"] * 5_000) + "])], isReadOnly = false)"
    (only,) = chunks(text(record(0, 1, 1, header)), count=1, end=1, chunk_bytes=1)
    assert only.size_bytes > 5_000


def test_nothing_is_no_chunk() -> None:
    assert chunks("[]", count=0, end=7, chunk_bytes=1) == []


@pytest.mark.parametrize(
    "poll",
    [
        "[org.apache.kafka.SomethingElse@1]",
        text(record(0, 1, 1, f"RecordHeaders(headers = [RecordHeader(key = {record(1, 1, 1)}, value = [])])")),
    ],
    ids=["another Kafka", "a header that looks like a record"],
)
def test_a_text_that_is_not_as_expected_is_not_counted(poll: str) -> None:
    with pytest.raises(ValueError, match="records were read"):
        chunks(poll, count=1, end=1, chunk_bytes=1)


def test_a_chunk_is_what_the_limit_is_made_of() -> None:
    assert chunks(text(record(4, 1, 1)), count=1, end=6, chunk_bytes=1)[-1] == Chunk(end=6, size_bytes=len(record(4, 1, 1)) + 3)
