"""streaming.engine.leases.connections, the part in the workers; tests/spark/test_leases.py has the rest."""

import pyarrow as pa

from state.session_codec import encode_session
from streaming.engine.leases.connections import _without_lease
from tests.scenarios.scenario import Scenario


def blob(connection_id: int, lease_id: str, *, ends: bool = False) -> bytes:
    s = Scenario().connect(connection_id=connection_id, lease_id=lease_id)
    return encode_session((s.lose_connection() if ends else s).session)


def test_only_connections_whose_lease_is_not_live_are_found() -> None:
    blobs = {
        "dead": blob(1, "dead"),
        "live": blob(2, "live"),
        "of a version without leases": blob(3, ""),
        "gone": blob(4, "dead", ends=True),
        "damaged": b"\x01garbage",
        "impossible": blob((1 << 64) - 1, "dead"),
        "dead, too": blob((1 << 63) - 1, "other"),
    }
    batch = pa.RecordBatch.from_pydict({"client_id": list(blobs), "blob": list(blobs.values())})
    [found, nothing] = _without_lease(iter([batch, batch.slice(1, 1)]), frozenset({"live"}))
    assert found.to_pylist() == [
        {"client_id": "dead", "connection_id": 1, "lease_id": "dead"},
        {"client_id": "dead, too", "connection_id": (1 << 63) - 1, "lease_id": "other"},
    ]
    assert (nothing.num_rows, nothing.schema) == (0, found.schema)
