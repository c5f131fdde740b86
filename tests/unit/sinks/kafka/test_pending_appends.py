from sinks.kafka.pending_appends import PartitionAppends, PendingAppend


def undecided(partition: PartitionAppends, deadline_s: float) -> PendingAppend:
    return PendingAppend(partition=partition, key=b"k", value=b"v", headers=None, done=lambda error: None, deadline_s=deadline_s)


def test_the_oldest_is_among_the_sent_then_among_the_held() -> None:
    partition = PartitionAppends(topic="t", number=0, producer=None)
    assert partition.oldest_deadline_s() is None
    first, second, third = (undecided(partition, deadline_s) for deadline_s in (1.0, 2.0, 3.0))
    partition.held += [second, third]
    assert partition.oldest_deadline_s() == 2.0
    partition.sent[first] = None
    assert partition.oldest_deadline_s() == 1.0
    assert partition.pop_all() == [first, second, third]
    assert partition.oldest_deadline_s() is None


def test_the_size_of_an_append_includes_its_headers() -> None:
    partition = PartitionAppends(topic="t", number=0, producer=None)
    plain = undecided(partition, 1.0)
    headers = [("h", bytes(10_000))]
    with_headers = PendingAppend(
        partition=partition, key=b"k", value=b"v", headers=headers, done=lambda error: None, deadline_s=1.0
    )
    assert with_headers.size_bytes >= plain.size_bytes + 10_000
