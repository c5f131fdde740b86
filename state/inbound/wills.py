"""Publishes the will of a client (MQTT 5, 3.1.2.5) when its connection ends without DISCONNECT, after the will delay."""

from collections.abc import Iterable
from dataclasses import dataclass

from state.activation import Activation
from state.commands import (
    AcceptConnection,
    Command,
    EndSessionMark,
    ForwardPublication,
    GatewayCommand,
    HeldCommand,
    Transition,
)
from state.connection import SessionConnection
from state.model import Will


@dataclass(slots=True, kw_only=True)
class PendingWill:
    """A will during its delay (MQTT 5, 3.1.3.2.2)."""

    will: Will
    connection_id: int
    due_ms: int


def pending_will(
    connection: SessionConnection, session_expiry_interval_s: int, now_ms: int, reconnect_grace_ms: int
) -> PendingWill | None:
    """Returns the will of a connection that has just ended; None = it has none.

    The delay ends with the session at the latest. A server that shuts down may defer wills (MQTT 5, 3.1.2.5), so the grace period
    holds even after a session that ends with its connection.
    """
    if connection.will is None:
        return None
    delay_ms = max(1_000 * min(connection.will.delay_s, session_expiry_interval_s), reconnect_grace_ms)
    return PendingWill(will=connection.will, connection_id=connection.connection_id, due_ms=now_ms + delay_ms)


def publish_will(pending: PendingWill, activation: Activation) -> None:
    """Forwards the will to the backends. The caller must forget it, so that it is published once."""
    will = pending.will
    publication_id = f"{activation.client_id}:{pending.connection_id}:will"
    activation.add(
        ForwardPublication(
            publication_id=publication_id,
            topic=will.topic,
            payload=will.payload,
            qos=will.qos,
            retain=will.retain,  # [MQTT-3.1.2-14]
            expiry_interval_s=will.expiry_interval_s,
            properties=will.properties,
            will=True,
            username=will.username,
        )
    )
    activation.record(Transition.PUBLICATION_FORWARDED, publication_id, detail="will")


def split_behind_wills(commands: Iterable[Command]) -> tuple[list[Command], tuple[HeldCommand, ...]]:
    """Splits off the commands that may be read only when the wills before them are in the log.

    The records of a micro-batch get into different partitions in any order. So a gateway could accept a device, and append what
    it publishes, ahead of the will of the connection before. The next micro-batch begins when Kafka has all records of this one.

    Returns:
        The commands of this activation, and those of the next one: the commands to each connection that is accepted behind a
        will, and the end of the mark that says that a will may come.
    """
    now: list[Command] = []
    held: list[HeldCommand] = []
    has_will, accepted = False, set[int]()
    for command in commands:
        if isinstance(command, ForwardPublication):
            has_will |= command.will
        elif isinstance(command, AcceptConnection) and has_will:
            accepted.add(command.connection_id)
        is_of_accepted = isinstance(command, GatewayCommand) and command.connection_id in accepted
        if isinstance(command, HeldCommand) and (is_of_accepted or (has_will and isinstance(command, EndSessionMark))):
            held.append(command)
        else:
            now.append(command)
    return now, tuple(held)
