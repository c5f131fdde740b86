"""Connection ids: growing, of one kind, and telling which."""

import pytest

from sinks.connection_ids import ConnectionIds, ConnectionKind, kind_of


@pytest.mark.parametrize("kind", ConnectionKind)
def test_ids_grow_and_say_their_kind(kind: ConnectionKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.connection_ids.time.time_ns", lambda: 1_700_000_000_000_000_000)  # a clock that stands still
    ids = ConnectionIds(kind)
    made = [ids.next() for _ in range(5_000)]
    assert made == sorted(set(made))
    assert {kind_of(number) for number in made} == {kind}
