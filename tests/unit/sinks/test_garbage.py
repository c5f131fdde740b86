import gc
import weakref
from collections.abc import Iterator

import pytest

from sinks.garbage import freeze_startup_heap


class Node:
    """Holds itself: only the collector finds it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_is_there_is_looked_at_once_more_and_then_not_again() -> None:
    garbage = weakref.ref(Node())
    freeze_startup_heap()
    assert garbage() is None, "what is garbage already goes"
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < 10_000


def test_what_comes_later_is_still_found() -> None:
    freeze_startup_heap()
    later = weakref.ref(Node())
    gc.collect()
    assert later() is None
