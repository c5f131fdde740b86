"""Chunks of waiting records, made of the batches of Kafka's log."""

import pytest

from streaming.engine.intake.batch_size import Chunk
from streaming.engine.intake.record_sizes import BatchFacts, batches
from streaming.engine.intake.waiting_records import chunks
from tests.unit.streaming.engine.intake.test_record_sizes import CODECS, batch


class Batch(BatchFacts):
    """A batch of so many bytes."""

    __slots__ = ()

    @property
    def size_bytes(self) -> int:
        return len(self.raw)


def sized(end: int, size_bytes: int) -> BatchFacts:
    return Batch(end, True, memoryview(bytes(size_bytes)))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_batch_counts_decompressed_with_keys_and_headers(codec: int) -> None:
    records = [(1, b"k" * 10, b"v" * 5_000, [("name", b"h" * 1_000)])] * 20
    (found,) = batches(batch(*records, codec=codec))
    assert 20 * 6_014 < found.size_bytes < 20 * 6_120


def test_batches_below_the_size_of_a_chunk_share_one() -> None:
    found = [sized(10, 600), sized(20, 600), sized(30, 2_000), sized(40, 10), sized(41, 10)]
    assert chunks(found, chunk_bytes=1_000) == [
        Chunk(end=20, size_bytes=1_200),
        Chunk(end=30, size_bytes=2_000),
        Chunk(end=41, size_bytes=20),
    ]


def test_a_chunk_reaches_beyond_what_is_no_record() -> None:
    assert chunks([sized(4, 2_000), BatchFacts(6, False, memoryview(b""))], chunk_bytes=3_000) == [Chunk(end=6, size_bytes=2_000)]


def test_nothing_is_no_chunk() -> None:
    assert chunks([], chunk_bytes=1) == []
