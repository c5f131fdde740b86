"""Collects what is known of one client: session (engine), ledger and gateway (Kafka), last refused login (logs)."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inflight.local.spark_jars import spark_jars
from inflight.status.logins import RefusedLogin, last_refused_login
from inflight.status.probes import lease_names
from state.commands import Transition
from state.errors import InflightError
from streaming.config.settings import Settings
from streaming.engine.answers.asking import EngineBusy
from streaming.history.clients import StoredClient, stored_in
from streaming.history.live_sessions import LiveSessions
from streaming.history.message_fates import fates
from streaming.history.recent import RecentSteps, recent_steps
from streaming.history.times import iso_utc, shown_utc, time_of_day
from streaming.history.trace import TraceStep

MOST: Final = 20
"""Messages of the queue, and subscriptions, that are shown."""
_RECORDS: Final = 50_000
_STEPS: Final = 2_000
_SILENT_MS: Final = 30_000
"""A device that has not acknowledged for longer does not answer."""
_PATIENCE_S: Final = 15.0
"""How long the engine may take for an answer."""
_LOGS: Final = "gateway*.log*"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientView:
    """Describes one client.

    Attributes:
        stored: Its session; None = it has none.
        is_known: False = no engine answered in time, so whether there is a session is not known.
        gateway: The gateway or bridge that holds its connection; empty = none, or not known.
        connected, disconnected, ended: The newest steps of the ledger of that kind.
        refused: The newest refusal in the gateways' logs of this data directory.
        source: How far back the ledger was read, for people.
    """

    client_id: str
    stored: StoredClient | None
    is_known: bool
    gateway: str = ""
    connected: TraceStep | None = None
    disconnected: TraceStep | None = None
    ended: TraceStep | None = None
    refused: RefusedLogin | None = None
    source: str = ""


def client_view(settings: Settings, client_id: str, on_progress: Callable[[int, int], None]) -> ClientView:
    """Asks the running engine, Kafka and the logs. Starts no Spark. Raises KafkaUnreachable, NothingFound."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(_ask, settings, client_id)
        found = recent_steps(settings, client_id, max_records=_RECORDS, most=_STEPS, on_progress=on_progress)
        answer = asked.result()
    stored = stored_in(answer[0], settings.session_settings, most=MOST) if answer else None
    lease_id = None if stored is None or stored.session is None else stored.session.lease_id
    return ClientView(
        client_id=client_id,
        stored=stored,
        is_known=answer is not None,
        gateway=lease_names(settings).get(lease_id, "") if lease_id else "",
        connected=_newest(found, Transition.CONNECTED),
        disconnected=_newest(found, Transition.DISCONNECTED),
        ended=_newest(found, Transition.SESSION_ENDED),
        refused=last_refused_login(sorted(Path(settings.engine.data_dir, "logs").glob(_LOGS)), client_id),
        source=found.source,
    )


def _ask(settings: Settings, client_id: str) -> list[dict[str, Any]] | None:
    """Returns the client's row, in a list; None if no engine answers in time."""
    try:
        answer: list[dict[str, Any]] | None = LiveSessions(settings, spark_jars).ask(
            "client", timeout_s=_PATIENCE_S, id=client_id
        )
    except EngineBusy:
        return None
    return answer


def connection_sentence(view: ClientView) -> str:
    """Says whether the client is connected, since when, or why not."""
    name, stored = view.client_id, view.stored
    is_connected = _is_connected(view)
    if is_connected:
        since = "" if view.connected is None else f" since {shown_utc(view.connected.time_ms)}"
        at = f" at {view.gateway}" if view.gateway else ""
        return f"{name} is connected{at}{since}"
    if stored is not None and stored.session is None:
        return f"{name} is not served: {stored.why_not}"
    newest_ms = max((step.time_ms for step in (view.connected, view.disconnected) if step is not None), default=0)
    # A refusal during a connection was of somebody else.
    if view.refused is not None and view.refused.time > iso_utc(newest_ms):
        refused = view.refused
        told = f"{name} is refused by the login at {time_of_day(refused.time)}: {refused.reason}"
        return f"{told} ({refused.detail})" if refused.detail else told
    if view.disconnected is not None:
        why = f" ({view.disconnected.detail})" if view.disconnected.detail else ""
        return f"{name} is offline since {shown_utc(view.disconnected.time_ms)}{why}"
    if view.connected is not None or (stored is not None and stored.session is not None and stored.session.has_connected):
        return f"{name} is offline, for longer than the ledger that was read goes back"
    return f"{name} has never connected"


def diagnosis(view: ClientView, now_ms: int) -> str:
    """Says in a sentence what is the matter, if anything."""
    connection, stored = connection_sentence(view), view.stored
    if not view.is_known:
        return f"{connection}; no engine has answered in time, so its window and queue are not known"
    if stored is None:
        why = f" ({view.ended.detail})" if view.ended is not None and view.ended.detail else ""
        return f"{connection}; it has no session{why}"
    if stored.session is None:
        return connection
    inflight, queued = stored.summary["inflight"], stored.summary["queued"]
    if not inflight and not queued:
        return f"{connection}; nothing waits for it"
    waits = f"{inflight:,} messages are in flight, {queued:,} wait"
    sent_ms = [message.first_sent_ms for message in stored.session.window if message.first_sent_ms is not None]
    age_ms = now_ms - min(sent_ms, default=now_ms)
    if _is_connected(view) and age_ms > _SILENT_MS:
        age_s = age_ms // 1_000
        return f"{connection}, but has not acknowledged a message that was sent {age_s:,} s ago; {waits}"
    return f"{connection}; {waits}"


def fate_sentences(settings: Settings, steps: Sequence[TraceStep]) -> list[str]:
    """Returns a sentence for each client of a message.

    Args:
        steps: The steps of the message's trace, oldest first.
    """
    return [
        f"{fate.sentence}; {known}"
        if fate.whereabouts.is_with_session and (known := _connection_of(settings, fate.client_id))
        else fate.sentence
        for fate in fates(steps)
    ]


def _connection_of(settings: Settings, client_id: str) -> str:
    """Returns whether the client is connected, or why not; empty if that cannot be read from here."""
    try:
        return connection_sentence(client_view(settings, client_id, lambda done, total: None))
    except InflightError:
        return ""


def _is_connected(view: ClientView) -> bool:
    """Returns what the session says; without an engine, what the ledger says."""
    if view.stored is not None:
        return bool(view.stored.summary["connected"])
    if view.is_known or view.connected is None:
        return False
    return view.disconnected is None or view.disconnected.time_ms < view.connected.time_ms


def _newest(found: RecentSteps, transition: Transition) -> TraceStep | None:
    return next((one.step for one in found.steps if one.step.step == transition.value), None)
