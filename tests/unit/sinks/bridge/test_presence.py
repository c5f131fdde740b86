"""sinks.bridge.presence: what brokers say of their clients. tests/integration/bridge has the tracker."""

import pytest

from sinks.bridge.presence import read_client_event


@pytest.mark.parametrize(
    ("payload", "client_id"),
    [
        (b'{"clientid":"c","username":"u"}', "c"),
        (b'{"client_id":"c"}', "c"),
        (b"{}", None),
        (b"no event", None),
        (b'{"clientid":"\xff"}', None),
        (b'{"new":' + b"[" * 100_000, None),
    ],
)
def test_an_event_names_its_client_or_is_none(payload: bytes, client_id: str | None) -> None:
    assert read_client_event(payload) == client_id
