import pytest

from state.errors import UnreadableRecord
from state.records.leases import Lease, decode_lease, encode_lease


def test_a_lease_comes_back_as_it_was() -> None:
    lease = Lease(holder="gateway h:1883", duration_ms=30_000, ended=True, wakes=True)
    assert decode_lease(encode_lease(lease)) == lease


def test_a_lease_of_the_first_version_is_still_readable() -> None:
    assert decode_lease(b"\x01\x92\xa1g\xcdu0") == Lease(holder="g", duration_ms=30_000)
    assert decode_lease(b"\x01\x93\xa1g\xcdu0\xc3") == Lease(holder="g", duration_ms=30_000, ended=True)


@pytest.mark.parametrize("data", [b"", b"\x02\x92\xa1g\x01", b"\x01\x91\xa1g", b"\x01\x92\x01\x01", b"\x01garbage"])
def test_anything_else_is_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        decode_lease(data)
