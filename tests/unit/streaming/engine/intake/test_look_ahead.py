from streaming.engine.intake.batch_size import BatchBounds, Chunk
from streaming.engine.intake.look_ahead import LONGEST_LOOK_S, LookAhead

KIB = 1_024
LARGEST, BOUND, MOST = 900 * KIB, 64 * KIB * KIB, 20_000
SAFE = BOUND // LARGEST
FETCH = 1_024 * KIB


class Topic:
    """Records by partition, as their sizes. looks: how often the sizes were requested."""

    def __init__(self, *partitions: list[int]) -> None:
        self.partitions = list(partitions)
        self.looks = 0
        self.silent = False
        self.now_s = 0.0
        self.look_s = 0.0

    def ends(self, topic: str, partitions: list[int]) -> dict[int, int]:
        assert topic == "messages"
        return {number: len(self.partitions[number]) for number in partitions}

    def measure(self, topic: str, number: int, offset: int) -> list[Chunk]:
        self.looks += 1
        self.now_s += self.look_s
        if self.silent:
            return []
        records, size, end = self.partitions[number], 0, offset
        while end < len(records) and (not size or size + records[end] <= FETCH):
            size += records[end]
            end += 1
        return [Chunk(end=end, size_bytes=size)]

    def close(self) -> None: ...

    def ahead(self) -> LookAhead:
        bounds = BatchBounds(max_records=MOST, max_bytes=BOUND, largest_bytes=LARGEST)
        return LookAhead("messages", self, bounds, monotonic_s=lambda: self.now_s)


def test_nothing_is_measured_when_all_fits_whatever_its_size() -> None:
    topic = Topic([LARGEST] * 10, [])
    assert topic.ahead().limit({0: 0, 1: 0}) == SAFE
    assert not topic.looks


def test_small_records_fill_a_micro_batch_up_to_the_limit_of_records() -> None:
    topic = Topic(*([100] * 30_000 for _ in range(4)))
    assert topic.ahead().limit(dict.fromkeys(range(4), 0)) == MOST
    assert topic.looks <= 8, "two rounds"


def test_large_records_are_measured_only_as_far_as_they_fit() -> None:
    topic = Topic(*([250 * KIB] * 5_000 for _ in range(4)))
    limit = topic.ahead().limit(dict.fromkeys(range(4), 0))
    assert 0.9 * BOUND <= limit * 250 * KIB <= BOUND
    assert topic.looks <= BOUND / FETCH * 1.5 + 8


def test_a_sudden_change_from_small_to_large_records_is_seen() -> None:
    small = 1_000
    topic = Topic([100] * small + [250 * KIB] * 5_000)
    limit = topic.ahead().limit({0: 0})
    assert small < limit
    assert (limit - small) * 250 * KIB <= BOUND


def test_one_partition_of_large_records_does_not_hold_up_the_others() -> None:
    topic = Topic([900 * KIB] * 100, [100] * 50_000)
    assert topic.ahead().limit({0: 0, 1: 0}) == MOST


def test_measured_records_are_not_measured_again() -> None:
    topic = Topic([100] * 60_000)
    ahead = topic.ahead()
    assert ahead.limit({0: 0}) == MOST
    looks = topic.looks
    assert ahead.limit({0: 0}) == MOST
    assert topic.looks == looks


def test_records_of_a_silent_partition_count_as_large() -> None:
    topic = Topic([100] * 10_000)
    topic.silent = True
    assert topic.ahead().limit({0: 0}) == SAFE
    assert topic.looks == 1


def test_unmeasured_records_count_as_large_when_the_time_is_over() -> None:
    topic = Topic(*([1_000] * 30_000 for _ in range(4)))
    topic.look_s = LONGEST_LOOK_S
    limit = topic.ahead().limit(dict.fromkeys(range(4), 0))
    assert SAFE <= limit < MOST
    assert topic.looks <= 4


def test_when_the_time_is_over_all_partitions_are_known_about_equally_far() -> None:
    topic = Topic(*([1_000] * 30_000 for _ in range(4)))
    topic.look_s = LONGEST_LOOK_S / 6  # the first round, and a half of the second
    limit = topic.ahead().limit(dict.fromkeys(range(4), 0))
    assert limit > 4 * 1_000, "what is known of each partition is taken"
    assert topic.looks <= 7
