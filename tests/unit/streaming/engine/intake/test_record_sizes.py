import tracemalloc

import pytest
from kafka.record.memory_records import MemoryRecordsBuilder

from streaming.engine.intake.record_sizes import MOST_KEY_BYTES, RecordFacts, batches

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LAST_MS = 2**63 - 1
MIB = 1 << 20

Appended = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]
"""Timestamp, key, value and headers of a record."""


def batch(*records: Appended, codec: int = 0) -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=codec, batch_size=1 << 30)
    for timestamp_ms, key, value, headers in records:
        builder.append(timestamp=timestamp_ms, key=key, value=value, headers=headers)
    builder.close()
    return bytes(builder.buffer())


def found(data: bytes) -> list[list[RecordFacts]]:
    return [list(one.records) for one in batches(data)]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_every_codec_gives_offset_time_size_and_key(codec: int) -> None:
    records: list[Appended] = [(1_000 + n, b"key-%d" % n, bytes(n * 1_000), [("name", b"v")]) for n in range(100)]
    data = batch(*records, (LAST_MS, None, None, []), codec=codec)
    ((*several, last),) = found(data)
    assert [(one.offset, one.timestamp_ms, one.key) for one in several] == [(n, 1_000 + n, b"key-%d" % n) for n in range(100)]
    assert all(n * 1_000 < one.size_bytes < n * 1_000 + 40 for n, one in enumerate(several))
    assert (last.offset, last.timestamp_ms, last.key) == (100, LAST_MS, None)
    assert [one.end for one in batches(data)] == [101]


def test_of_a_long_key_only_the_start_is_read() -> None:
    ((record,),) = found(batch((1, b"k" * 5_000, b"v", [])))
    assert record.key == b"k" * MOST_KEY_BYTES
    assert record.size_bytes > 5_000


def test_an_empty_header_counts_as_it_is_stored() -> None:
    ((without,), (with_headers,)) = found(batch((1, b"k", b"", [])) + batch((1, b"k", b"", [("", b"")] * 10_000)))
    assert with_headers.size_bytes - without.size_bytes >= 20_000


def test_each_recipient_of_a_record_counts_its_copy_of_the_value() -> None:
    headers = [(f"recipient-{number}", b"") for number in range(100)]
    ((keyed,), (several,), (tombstone,)) = found(
        batch((1, b"k", bytes(5_000), headers)) + batch((1, None, bytes(5_000), headers)) + batch((1, None, None, headers))
    )
    assert several.size_bytes == keyed.size_bytes - 1 + 100 * 5_000  # a record without a key has one byte less
    assert tombstone.size_bytes < 3_000


@pytest.mark.parametrize("codec", [1, 3, 4], ids=["gzip", "lz4", "zstd"])
def test_a_record_of_many_megabytes_takes_no_memory(codec: int) -> None:
    data = batch((1, b"k", bytes(40 * MIB), []), (1, b"k", b"", []), codec=codec)
    tracemalloc.start()
    try:
        ((record, _),) = found(data)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert record.size_bytes > 40 * MIB
    assert peak_bytes < 8 * MIB


def test_the_last_batch_of_an_answer_may_be_cut() -> None:
    data = batch((1, b"k", b"v", []))
    assert [one.end for one in batches(data + data[:-1])] == [1]
    assert list(batches(data[:20])) == []


def test_a_batch_that_ends_within_a_record_is_damaged() -> None:
    whole = batch((1, b"k", b"value", []), (1, b"k", b"value", []))
    shorter = bytearray(whole[:-10])
    shorter[8:12] = (len(shorter) - 12).to_bytes(4, "big")
    with pytest.raises(EOFError):
        found(bytes(shorter))


def test_a_record_that_is_longer_than_it_says_is_damaged() -> None:
    data = bytearray(batch((1, b"key", b"value", []), (1, b"key", b"value", [])))
    data[61] = 4  # the length of the record, two in this coding
    with pytest.raises(ValueError, match="longer"):
        found(bytes(data))


def test_control_batches_have_an_end_and_no_records() -> None:
    data = bytearray(batch((1, b"k", b"v", [])))
    data[22] |= 0x20
    assert [(one.end, one.has_records, list(one.records)) for one in batches(bytes(data))] == [(1, False, [])]


def test_a_topic_with_append_time_has_the_time_of_the_batch() -> None:
    data = bytearray(batch((1, b"k", b"v", []), (5, b"k", b"v", [])))
    data[22] |= 0x08
    assert [record.timestamp_ms for record in found(bytes(data))[0]] == [5, 5]
