import pytest

from sinks.mqtt.listeners.origins import is_origin_allowed

APP = "https://app.example.com"


@pytest.mark.parametrize(
    ("origins", "host", "is_tls", "allowed"),
    [
        ([], "127.0.0.1:8083", False, True),
        ([APP], "127.0.0.1:8083", False, True),
        (["https://evil.example.com"], "127.0.0.1:8083", False, False),
        (["null"], "127.0.0.1:8083", False, False),
        ([APP, "https://evil.example.com"], "127.0.0.1:8083", False, False),
        (["https://127.0.0.1:8083"], "127.0.0.1:8083", False, True),
        (["http://localhost:8083"], "localhost:8083", False, True),
        (["http://[::1]:8083"], "[::1]:8083", False, True),
        (["http://127.0.0.1:80"], "127.0.0.1:8083", False, False),
        # a name of evil.example.com's that it has pointed at this machine
        (["http://evil.example.com:8083"], "evil.example.com:8083", False, False),
        (["https://Gateway.example.com"], "gateway.example.com", True, True),
        (["http://[::1"], "[::1", False, False),
    ],
)
def test_pages_of_other_sites_are_kept_out(origins: list[str], host: str, is_tls: bool, allowed: bool) -> None:
    assert is_origin_allowed(origins, host=host, allowed=(APP,), is_tls=is_tls) is allowed


def test_all_pages_may_be_let_in() -> None:
    assert is_origin_allowed(["https://evil.example.com"], host="h", allowed=("*",), is_tls=False)
