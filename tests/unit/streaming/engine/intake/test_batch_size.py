import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.engine.intake.batch_size import BatchBounds, Chunk, Waiting, records_that_fit, share

LARGEST = 1_000


def fit(*partitions: Waiting, max_records: int = 10_000, max_bytes: int = 50_000, unknown_bytes: int = LARGEST) -> int:
    bounds = BatchBounds(max_records=max_records, max_bytes=max_bytes, largest_bytes=LARGEST)
    return records_that_fit(partitions, bounds, unknown_bytes=unknown_bytes)


def waiting(count: int, *chunks: tuple[int, int], begin: int = 0) -> Waiting:
    """chunks: up to which offset, and how many bytes."""
    return Waiting(begin=begin, end=begin + count, chunks=[Chunk(end=end, size_bytes=size) for end, size in chunks])


@pytest.mark.parametrize(
    ("partitions", "limit"),
    [
        ([], 50),
        ([waiting(0)], 50),
        ([waiting(10)], 50),
        ([waiting(1_000)], 50),
        ([waiting(1_000, (1_000, 10_000))], 1_040),
        ([waiting(1_000, (100, 10_000))], 140),
        # All of a chunk, or as many of it as fit if they are the largest.
        ([waiting(1_000, (100, 30_000), (200, 60_000))], 120),
        ([waiting(100, (100, 100 * LARGEST))], 50),
        # Half from each, and as much as can be from none.
        ([waiting(1_000), waiting(1_000)], 51),
        # A small record of one partition for nine of the other.
        ([waiting(900, (900, 9_000)), waiting(100, (100, 100 * LARGEST))], 419),
        ([waiting(100, (50, 5_000), begin=20)], 75),
    ],
)
def test_the_limit_is_the_largest_that_fits(partitions: list[Waiting], limit: int) -> None:
    assert fit(*partitions) == limit


def test_no_more_records_than_allowed_and_never_none() -> None:
    assert fit(waiting(1_000, (1_000, 1)), max_records=30) == 30
    assert fit(waiting(1_000), max_bytes=1) == 1


def test_as_if_what_is_unknown_had_no_size() -> None:
    assert fit(waiting(1_000, (100, 10_000)), unknown_bytes=0, max_records=700) == 700
    assert fit(waiting(1_000, (100, 100_000)), unknown_bytes=0) == 50


sizes = st.lists(st.integers(1, LARGEST), max_size=60)


@given(st.lists(st.tuples(sizes, st.integers(0, 60)), min_size=1, max_size=4), st.integers(1, 200), st.integers(1, 30_000))
def test_a_micro_batch_with_this_limit_is_within_its_bounds(
    partitions: list[tuple[list[int], int]], max_records: int, max_bytes: int
) -> None:
    """Each partition: the sizes of its records, and of how many of them they are known, three at a time."""
    made = [
        Waiting(
            begin=0,
            end=len(records),
            chunks=[
                Chunk(end=min(place + 3, len(records)), size_bytes=sum(records[place : place + 3]))
                for place in range(0, min(known, len(records)), 3)
            ],
        )
        for records, known in partitions
    ]
    limit = fit(*made, max_records=max_records, max_bytes=max_bytes)
    total = sum(part.count for part in made)
    taken = [sum(records[: share(limit, part, total)]) for part, (records, _) in zip(made, partitions, strict=True) if part.count]
    one_of_each = sum(records[0] for records, _ in partitions if records)
    assert 1 <= limit <= max_records
    assert sum(taken) <= max_bytes or (limit == 1 and sum(taken) <= one_of_each)
