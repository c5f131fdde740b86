"""streaming.engine.leases.topic: what a record says. tests/spark/test_leases.py has the topic."""

import pytest

from state.errors import NewerRecord
from state.records.leases import Lease, encode_lease
from state.records.record import NEWER_MARK
from streaming.engine.leases.topic import lease_of


def test_an_undecodable_lease_is_ignored_and_a_newer_version_raises() -> None:
    lease = Lease(holder="g", duration_ms=30_000)
    assert lease_of(encode_lease(lease)) == lease
    assert lease_of(None) is None
    assert lease_of(b"garbage") is None
    assert lease_of(b"\x02garbage") is None
    with pytest.raises(NewerRecord, match="start the version that wrote it"):
        lease_of(b"\x02" + NEWER_MARK + b"\x90")
