"""Implements `client`: one client, with a diagnosis in a sentence."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inflight.cli.history import Json
from inflight.cli.options import Config, DataDir, Overrides, load_for_running_system
from streaming.terminal import say, write_json, write_table

if TYPE_CHECKING:
    from inflight.status.client import ClientView
    from streaming.history.clients import HeldMessage


def client(
    client_id: Annotated[str, typer.Argument(metavar="CLIENT", help="The MQTT client id.")],
    json: Json = False,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
) -> None:
    """Show one client: online or why not, since when, its window and queue, its last refused login, and a diagnosis."""
    from inflight.status.client import client_view, diagnosis

    view = client_view(load_for_running_system(config, overrides, data_dir), client_id, lambda done, total: None)
    told = diagnosis(view, time.time_ns() // 1_000_000)
    if json:
        write_json([_document(view, told)])
        return
    say(told)
    say("")
    write_table(("field", "value"), _fields(view))
    session = None if view.stored is None else view.stored.session
    if session is None:
        return
    for title, messages in ("in flight", session.window), ("queued", session.queue):
        if messages:
            say(f"\n{title}:")
            write_table(("message_id", "topic", "qos", "attempts", "first_sent", "expires", "bytes"), map(_row, messages))
    if session.scheduled:
        say("\nfor later:")
        write_table(("message_id", "topic", "qos", "deliver_at", "expires", "bytes"), map(_row_for_later, session.scheduled))


def _fields(view: "ClientView") -> list[tuple[str, object]]:
    from streaming.history.times import shown_utc, time_of_day

    summary: dict[str, Any] = {} if view.stored is None else view.stored.summary
    session = None if view.stored is None else view.stored.session
    fields: list[tuple[str, object]] = [
        ("connected", summary.get("connected")),
        ("gateway", view.gateway),
        ("last connected", shown_utc(None if view.connected is None else view.connected.time_ms)),
        ("last disconnected", shown_utc(None if view.disconnected is None else view.disconnected.time_ms)),
        ("why", None if view.disconnected is None else view.disconnected.detail),
        ("in flight", summary.get("inflight")),
        ("queued", summary.get("queued")),
        ("bytes queued", summary.get("queued_bytes")),
    ]
    if session is not None:
        fields += [
            ("limit of the queue", session.queue_limit),
            ("send quota", session.send_quota),
            ("for later", session.scheduled_count or None),
            ("subscriptions", session.subscription_count),
            ("session expiry, s", session.session_expiry_interval_s),
        ]
    if view.refused is not None:
        refused = view.refused
        fields.append(("login refused", f"{time_of_day(refused.time)} from {refused.address}: {refused.reason} {refused.detail}"))
    fields.append(("ledger", view.source))
    return [(name, value) for name, value in fields if value not in (None, "")]


def _row(message: "HeldMessage") -> tuple[object, ...]:
    from streaming.history.times import shown_utc

    times = map(shown_utc, (message.first_sent_ms, message.expires_at_ms))
    return (message.message_id, message.topic, message.qos, message.attempts, *times, message.size_bytes)


def _row_for_later(message: "HeldMessage") -> tuple[object, ...]:
    from streaming.history.times import shown_utc

    times = map(shown_utc, (message.deliver_at_ms, message.expires_at_ms))
    return (message.message_id, message.topic, message.qos, *times, message.size_bytes)


def _document(view: "ClientView", told: str) -> dict[str, Any]:
    import msgspec

    return {"diagnosis": told, **msgspec.to_builtins(view)}
