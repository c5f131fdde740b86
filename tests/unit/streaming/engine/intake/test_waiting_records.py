from dataclasses import dataclass, field

from streaming.engine.intake.batch_size import Chunk
from streaming.engine.intake.waiting_records import chunks, size_bytes


@dataclass
class Message:
    """The part of librdkafka's message that is measured."""

    payload: bytes | None = None
    its_key: bytes | None = None
    its_headers: list[tuple[str, bytes | None]] | None = field(default=None)

    def __len__(self) -> int:
        return len(self.payload or b"")

    def key(self) -> bytes | None:
        return self.its_key

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.its_headers


def test_a_record_counts_with_its_key_and_its_headers() -> None:
    nothing = size_bytes(Message())
    assert size_bytes(Message(b"x" * 100, b"k" * 10)) == nothing + 110
    headers = [("name", b"v" * 1_000), ("other", None)]
    assert nothing + 1_009 < size_bytes(Message(its_headers=headers)) < nothing + 1_050


def test_large_records_have_chunks_of_their_own() -> None:
    assert chunks([(5, 2_000), (6, 3_000), (9, 10)], end=11, chunk_bytes=1_000) == [
        Chunk(end=6, size_bytes=2_000),
        Chunk(end=7, size_bytes=3_000),
        Chunk(end=11, size_bytes=10),
    ]


def test_small_records_share_a_chunk() -> None:
    assert chunks([(number, 100) for number in range(100)], end=100, chunk_bytes=1 << 20) == [Chunk(end=100, size_bytes=10_000)]


def test_the_last_chunk_reaches_beyond_what_is_no_record() -> None:
    assert chunks([(4, 2_000)], end=6, chunk_bytes=1_000) == [Chunk(end=6, size_bytes=2_000)]


def test_nothing_is_no_chunk() -> None:
    assert chunks([], end=7, chunk_bytes=1) == []
