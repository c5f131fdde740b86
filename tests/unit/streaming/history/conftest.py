import pytest

from tests.support.stored_history import Topics, topics_of_all_readers


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    return topics_of_all_readers(monkeypatch)
