import threading

from inflight.producer.capacity import Capacity


def test_room_is_limited_by_messages_and_by_bytes() -> None:
    capacity = Capacity(messages=2, size_bytes=100)
    assert capacity.reserve(60, 0.0)
    assert not capacity.reserve(60, 0.0)
    assert capacity.reserve(40, 0.0)
    assert not capacity.reserve(0, 0.01)
    capacity.release(40)
    assert capacity.reserve(10, 0.0)


def test_whoever_waits_gets_the_room_that_is_given_back() -> None:
    capacity = Capacity(messages=1, size_bytes=100)
    assert capacity.reserve(10, 0.0)
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(capacity.reserve(10, 30.0)))
    thread.start()
    capacity.release(10)
    thread.join()
    assert taken == [True]


def test_there_is_room_for_what_would_not_wait() -> None:
    capacity = Capacity(messages=2, size_bytes=100)
    assert capacity.has_room(100)
    assert capacity.reserve(60, 0)
    assert [capacity.has_room(size) for size in (40, 41)] == [True, False]
    assert capacity.reserve(1, 0)
    assert not capacity.has_room(0)
