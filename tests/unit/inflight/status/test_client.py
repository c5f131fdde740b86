from dataclasses import replace

import pytest

from inflight.status.client import ClientView, connection_sentence, diagnosis
from inflight.status.logins import RefusedLogin
from streaming.history.clients import HeldMessage, HeldSession, StoredClient
from streaming.history.trace import TraceStep

T0 = 1_790_000_000_000
AT = "2026-09-21 14:13:20.000"
MESSAGE = HeldMessage(
    message_id="m", topic="t", qos=1, priority=0, attempts=1, size_bytes=1, payload="p", accepted_ms=T0, first_sent_ms=T0,
    expires_at_ms=None, fast_path=False, packet_id=1, phase="AWAITING_PUBACK",
)  # fmt: skip
SESSION = HeldSession(
    has_connected=True, lease_id=None, protocol_version=None, send_quota=None, offline_since_ms=T0,
    session_expiry_interval_s=7_200, awaiting_rel=0, subscription_count=0, subscriptions=(), window=(), queue=(),
)  # fmt: skip


def stored(*, connected: bool = False, inflight: int = 0, queued: int = 0, session: HeldSession | None = SESSION) -> StoredClient:
    summary = {"connected": connected, "inflight": inflight, "queued": queued, "quarantined": session is None}
    return StoredClient(summary=summary, session=session, why_not="the client is quarantined: KeyError")


def view(**known: object) -> ClientView:
    return replace(ClientView(client_id="gate-1", stored=stored(), is_known=True), **known)  # type: ignore[arg-type]


def step(time_ms: int, name: str, detail: str = "") -> TraceStep:
    return TraceStep(time_ms=time_ms, client_id="gate-1", step=name, detail=detail)


CONNECTED = step(T0, "connected")
DISCONNECTED = step(T0, "disconnected", "keep alive timeout")
REFUSED = RefusedLogin(time="2026-09-21T14:13:21.000Z", reason="bad_credentials", detail="wrong password", address="10.0.0.1")


NEVER = stored(queued=3, session=replace(SESSION, has_connected=False))
ONLINE = {"stored": stored(connected=True), "connected": CONNECTED, "gateway": "gateway a"}
OFFLINE = {"connected": step(T0 - 1, "connected"), "disconnected": DISCONNECTED}
NOTHING = "nothing waits for it"


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (view(stored=None), "gate-1 has never connected; it has no session"),
        (view(stored=NEVER), "gate-1 has never connected; 0 messages are in flight, 3 wait"),
        (view(**ONLINE), f"gate-1 is connected at gateway a since {AT}; {NOTHING}"),
        (view(**OFFLINE), f"gate-1 is offline since {AT} (keep alive timeout); {NOTHING}"),
        (
            view(refused=REFUSED),
            f"gate-1 is refused by the login at 2026-09-21 14:13:21.000: bad_credentials (wrong password); {NOTHING}",
        ),
        (
            view(refused=REFUSED, connected=step(T0 - 1, "connected"), disconnected=step(T0 + 5_000, "disconnected")),
            f"gate-1 is offline since 2026-09-21 14:13:25.000; {NOTHING}",
        ),
        (
            view(refused=REFUSED, connected=step(T0 + 5_000, "connected")),
            f"gate-1 is offline, for longer than the ledger that was read goes back; {NOTHING}",
        ),
        (view(stored=stored(session=None)), "gate-1 is not served: the client is quarantined: KeyError"),
        (
            view(stored=None, is_known=False, connected=CONNECTED),
            f"gate-1 is connected since {AT}; no engine has answered in time, so its window and queue are not known",
        ),
        (
            view(stored=None, **OFFLINE, ended=step(T0, "session_ended", "clean start")),
            f"gate-1 is offline since {AT} (keep alive timeout); it has no session (clean start)",
        ),
    ],
)
def test_a_client_is_diagnosed_in_a_sentence(seen: ClientView, said: str) -> None:
    assert diagnosis(seen, T0) == said


def test_a_connected_device_that_does_not_answer_is_named() -> None:
    seen = view(
        stored=stored(connected=True, inflight=1, queued=2, session=replace(SESSION, window=(MESSAGE,))), connected=CONNECTED
    )
    assert "has not acknowledged a message that was sent 31 s ago; 1 messages are in flight, 2 wait" in diagnosis(
        seen, T0 + 31_000
    )
    assert "has not acknowledged" not in diagnosis(seen, T0 + 30_000)


def test_a_new_login_counts_more_than_an_older_refusal() -> None:
    assert connection_sentence(view(refused=REFUSED, disconnected=DISCONNECTED)).startswith("gate-1 is refused")
