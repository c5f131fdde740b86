from dataclasses import replace

import pytest

from sinks.mqtt.settings import NO_LISTENER, GatewaySettings, ListenerSettings, Transport, is_loopback


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("gateway.example.com", False),
        ("", False),
    ],
)
def test_only_this_machine_reaches_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_anonymous_devices_may_connect_on_loopback_or_if_configured() -> None:
    for host, anonymous, configured, let_in in (
        ("127.0.0.1", False, False, True),
        ("127.0.0.1", False, True, False),
        ("127.0.0.1", True, True, True),
        ("0.0.0.0", False, False, False),
        ("0.0.0.0", True, False, True),
    ):
        listener = ListenerSettings(host=host, anonymous=anonymous)
        assert listener.lets_anonymous_in(is_login_configured=configured) is let_in
    assert not ListenerSettings(proxies=("127.0.0.1",)).lets_anonymous_in(is_login_configured=False)


def test_the_url_of_a_listener_says_what_a_client_needs() -> None:
    assert ListenerSettings().url("127.0.0.1", 1883) == "mqtt://127.0.0.1:1883"
    assert ListenerSettings(tls_certfile="a.pem").url("::", 8883) == "mqtts://[::]:8883"
    websocket = ListenerSettings(transport=Transport.WEBSOCKET, websocket_path="/mqtt")
    assert websocket.url("0.0.0.0", 8083) == "ws://0.0.0.0:8083/mqtt"
    assert replace(websocket, tls_certfile="a.pem").url("h", 8084) == "wss://h:8084/mqtt"


def test_the_plain_listener_is_the_first_one_unless_it_is_off() -> None:
    other = ListenerSettings(port=8883)
    plain = ListenerSettings(host="127.0.0.1", port=1883, anonymous=True)
    assert GatewaySettings(anonymous=True, listeners=(other,)).all_listeners == (plain, other)
    assert GatewaySettings(port=NO_LISTENER, listeners=(other,)).all_listeners == (other,)
