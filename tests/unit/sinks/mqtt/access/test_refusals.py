"""sinks.mqtt.access.refusals"""

from structlog.testing import capture_logs

from sinks.mqtt.access.grant import LoginRefused, Refusal
from sinks.mqtt.access.refusals import Refusals
from sinks.mqtt.metrics import GatewayCounters


def test_each_is_counted_and_most_are_logged() -> None:
    counters = GatewayCounters()
    refusals = Refusals(counters)

    def refuse(now_ms: int) -> None:
        refused = LoginRefused(Refusal.TOKEN, "expired")
        refusals.refused(refused, address="192.0.2.1", client_id="c" * 500, username="ada", now_ms=now_ms)

    with capture_logs() as lines:
        for _ in range(25):
            refuse(5_000)
        refusals.catch_up(6_000)
    assert lines[0] == {
        "event": "login_refused",
        "log_level": "warning",
        "reason": "token",
        "detail": "expired",
        "address": "192.0.2.1",
        "client_id": "c" * 100,
        "username": "ada",
    }
    assert [line["event"] for line in lines] == ["login_refused"] * 10 + ["more_logins_refused"]
    assert counters.logins_refused == {"token": 25}
