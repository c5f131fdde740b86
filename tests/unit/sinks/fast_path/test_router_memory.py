from hypothesis import given
from hypothesis import strategies as st

from sinks.fast_path.router_memory import RouterMemory


def test_the_newest_message_of_a_client_is_known_as_far_as_it_was_read() -> None:
    made = memory(clients=1)
    assert made.newest(0, b"a") == 9, "nothing is known of what is earlier"
    made.previous(0, b"a", 12)
    assert made.newest(0, b"a") == 12
    made.previous_of_each(0, [b"b"], 13)
    assert (made.newest(0, b"a"), made.newest(0, b"b")) == (12, 13), "forgotten: none is above"
    made.revoked(0)
    assert made.newest(0, b"a") is None


def memory(next_offset: int = 10, *, clients: int = 100) -> RouterMemory:
    made = RouterMemory(clients)
    made.assigned(0, next_offset)
    return made


def test_the_last_message_of_the_client_is_the_previous_one() -> None:
    router = memory()
    assert [router.previous(0, key, offset) for key, offset in ((b"a", 10), (b"b", 11), (b"a", 15), (b"a", 16))] == [9, 9, 10, 15]


def test_partitions_are_independent() -> None:
    router = memory()
    router.assigned(1, 0)
    router.previous(0, b"a", 10)
    assert router.previous(1, b"a", 0) == -1


def test_a_forgotten_client_raises_the_floor_for_unknown_clients() -> None:
    for unknown, known in ((b"b", b"c"), (b"d", b"c")):
        router = memory(clients=2)
        for key, offset in ((b"a", 10), (b"b", 11), (b"a", 12), (b"c", 13)):
            router.previous(0, key, offset)
        assert router.previous(0, unknown, 20) == 11, "b was forgotten at 11"
        assert router.previous(0, known, 21) == 13


def test_a_new_assignment_forgets_everything() -> None:
    router = memory()
    router.previous(0, b"a", 10)
    router.revoked(0)
    router.revoked(7)
    router.assigned(0, 30)
    assert router.previous(0, b"a", 30) == 29


def test_offsets_that_begin_again_forget_everything() -> None:
    router = memory()
    router.previous(0, b"a", 20)
    assert router.previous(0, b"b", 20) == 19
    assert router.previous(0, b"a", 22) == 19


def test_recipients_of_one_message_each_have_their_own_previous_one() -> None:
    router = memory()
    router.previous(0, b"a", 10)
    assert router.previous_of_each(0, [b"a", b"b"], 11) == [10, 9]
    assert router.previous_of_each(0, [b"a", b"b", b"c"], 12) == [11, 11, 9]
    assert router.previous_of_each(0, [b"c"], 12) == [11], "offsets begin again"


def test_recipients_that_are_too_many_raise_the_floor() -> None:
    router = memory(clients=2)
    assert router.previous_of_each(0, [b"a", b"b"], 10) == [9, 9]
    assert router.previous_of_each(0, [b"c"], 11) == [9], "nobody was forgotten before"
    assert router.previous_of_each(0, [b"a"], 12) == [10]


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 5), min_size=1, unique=True), st.integers(1, 3)), max_size=60),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_there_is_never_a_message_of_the_client_in_between(steps: list[tuple[list[int], int]], clients: int, start: int) -> None:
    """steps: the clients, and how many offsets later."""
    router = memory(start, clients=clients)
    offset = start - 1
    seen: dict[int, int] = {}
    for recipients, distance in steps:
        offset += distance
        if len(recipients) == 1:
            all_previous = [router.previous(0, b"%d" % recipients[0], offset)]
        else:
            all_previous = router.previous_of_each(0, [b"%d" % client for client in recipients], offset)
        for client, previous in zip(recipients, all_previous, strict=True):
            assert seen.get(client, -1) <= previous < offset
            seen[client] = offset


def test_it_says_up_to_where_it_has_read() -> None:
    router = memory()
    router.assigned(1, 0)
    router.previous(0, b"a", 12)
    assert [router.read_to(partition) for partition in range(3)] == [12, -1, None]
    router.revoked(0)
    assert router.read_to(0) is None
