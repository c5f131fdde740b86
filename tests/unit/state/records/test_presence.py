import json

import pytest

from state.commands import ClearPresence, SetPresence
from state.errors import UnreadableRecord
from state.model import NEVER_EXPIRES_S
from state.records.presence import GonePresence, PresenceRecord, decode_presence, gone_presence, presence_record

ONLINE = SetPresence(
    online=True, since_ms=7_000, connection_id=2**62 + 1, gateway="g-1", protocol_version=5, session_expiry_interval_s=60
)


def test_a_presence_is_json_that_any_consumer_can_read() -> None:
    record = presence_record("presence", "ü", ONLINE)
    assert (record.topic, record.key, record.headers, record.partition) == ("presence", "ü".encode(), None, None)
    assert json.loads(record.value or b"") == {
        "online": True,
        "since_ms": 7_000,
        "connection_id": "4611686018427387905",  # a number would be rounded in JavaScript
        "gateway": "g-1",
        "protocol_version": 5,
        "session_expiry_interval_s": 60,
        "expires_ms": None,
        "reason": "",
    }


@pytest.mark.parametrize(("expiry_s", "expires_ms"), [(60, 67_000), (NEVER_EXPIRES_S, None)])
def test_an_offline_client_has_the_time_at_which_its_session_ends(expiry_s: int, expires_ms: int | None) -> None:
    offline = SetPresence(
        online=False,
        since_ms=7_000,
        connection_id=1,
        gateway="",
        protocol_version=4,
        session_expiry_interval_s=expiry_s,
        reason="keep alive",
    )
    found = decode_presence(presence_record("p", "c", offline).value or b"")
    assert (found.online, found.expires_ms, found.gateway, found.reason) == (False, expires_ms, None, "keep alive")
    assert found.session_expiry_interval_s == (None if expires_ms is None else 60)


def test_the_end_of_a_session_has_no_value_and_says_why_in_headers() -> None:
    record = presence_record("p", "c", ClearPresence(connection_id=5, since_ms=9, reason="clean start"))
    assert record.value is None
    headers = [(header.key, header.value) for header in record.headers or ()]
    assert gone_presence(headers) == GonePresence(since_ms=9, connection_id="5", reason="clean start")


@pytest.mark.parametrize("value", [b"x", b"-1", "²".encode(), b"9" * 21, None])
def test_headers_that_others_wrote_have_defaults(value: bytes | None) -> None:
    assert gone_presence([("since-ms", value), ("connection-id", value)]) == GonePresence()
    assert gone_presence([]) == GonePresence()


def test_unknown_fields_are_ignored_and_missing_fields_have_defaults() -> None:
    assert decode_presence(b'{"online": true, "new": [1]}') == PresenceRecord(online=True)


@pytest.mark.parametrize("value", [b"", b"{}", b"\xff", b'{"online": 1}', b'{"new":' + b"[" * 100_000])
def test_another_value_is_unreadable(value: bytes) -> None:
    with pytest.raises(UnreadableRecord, match="presence"):
        decode_presence(value)
