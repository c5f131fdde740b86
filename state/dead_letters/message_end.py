"""Builds the commands for a message that leaves its session: a ledger row, its dead letters and its receipt.

Every end of a message is built here. The engine counts ends by their receipts (streaming/engine/operator/reported_counts.py).
"""

from collections.abc import Iterator

from state.commands import Command, RecordTransition, SendReceipt, Transition
from state.dead_letters.dead_letter import NOT_DEAD, DeadLettering, death_count
from state.model import NO_PROPERTIES, ClientId, DestinationKind, Outcome, PacketId, PublishProperties
from state.outbound.inflight_window import Delivery
from state.records.receipts import Receipt
from state.records.trace_context import TRACEPARENT, traceparent_of


def message_end(
    delivery: Delivery,
    outcome: Outcome,
    *,
    client_id: ClientId,
    now_ms: int,
    time_ms: int | None = None,
    died: DeadLettering = NOT_DEAD,
    packet_id: PacketId | None = None,
    reason_code: int = 0,
    detail: str = "",
    with_receipt: bool = True,
) -> Iterator[Command]:
    """Yields the commands for a message that leaves the session of `client_id`, in order.

    Args:
        now_ms: Time of the activation.
        time_ms: When the client did what ended it; None = now.
        died: The dead letters of the message.
        packet_id: Of its last exchange; None = it has none.
        reason_code: The client's reason code; 0 = success or none.
        detail: Text for people.
        with_receipt: False for a routed message without receipts.
    """
    message_id = delivery.message.message_id
    ended_ms = now_ms if time_ms is None else time_ms
    yield RecordTransition(
        transition=Transition.FINISHED,
        time_ms=ended_ms,
        message_id=message_id,
        packet_id=packet_id,
        attempt=delivery.transmissions,
        outcome=outcome,
        reason_code=reason_code,
        detail=detail,
    )
    if died is not NOT_DEAD:
        yield from _dead_letters(message_id, outcome, died, now_ms)
    if with_receipt and outcome is not Outcome.DUPLICATE:  # the message that it repeats has the receipt
        yield receipt_command(
            delivery,
            outcome,
            client_id=client_id,
            now_ms=now_ms,
            time_ms=ended_ms,
            died=died,
            reason_code=reason_code,
            detail=detail,
        )


def receipt_command(
    delivery: Delivery,
    outcome: Outcome,
    *,
    client_id: ClientId,
    now_ms: int,
    time_ms: int | None = None,
    died: DeadLettering = NOT_DEAD,
    reason_code: int = 0,
    detail: str = "",
) -> SendReceipt:
    """Returns the command for the receipt alone. The arguments are those of `message_end`."""
    message = delivery.message
    destinations = [letter.destination for letter in died.letters if letter.destination is not None]
    receipt = Receipt(
        message_id=message.message_id,
        client_id=client_id,
        outcome=Outcome.DEAD_LETTER_UNROUTABLE if died.fault else outcome,
        reason_code=reason_code,
        attempts=delivery.transmissions,
        accepted_ms=message.accepted_ms,
        first_sent_ms=delivery.first_sent_ms,
        outcome_ms=now_ms if time_ms is None else time_ms,
        recorded_ms=now_ms,
        detail=f"{outcome}: {died.fault}" if died.fault else "; ".join(filter(None, (detail, died.limit))),
        final=all(destination.kind is not DestinationKind.CLIENT for destination in destinations),
        destinations=tuple(f"{destination.kind}:{destination.name}" for destination in destinations),
        deaths=death_count(died.letters[0].message if died.letters else message),
        correlation_data=message.properties.correlation_data,
        fast_path=delivery.fast_path,
        traceparent=traceparent_of(message.properties.user_properties),
    )
    return SendReceipt(receipt=receipt, response_topic=message.properties.response_topic)


def properties_for_receipt(properties: PublishProperties) -> PublishProperties:
    """Returns the properties that the receipt needs, so that the others can be dropped."""
    trace = traceparent_of(properties.user_properties)
    traced = () if trace is None else ((TRACEPARENT, trace),)
    if properties.response_topic is None:
        return PublishProperties(user_properties=traced) if traced else NO_PROPERTIES
    return PublishProperties(
        response_topic=properties.response_topic, correlation_data=properties.correlation_data, user_properties=traced
    )


def _dead_letters(message_id: str, reason: Outcome, died: DeadLettering, now_ms: int) -> Iterator[Command]:
    """Yields the dead letters, and a ledger row for each destination and for each that was dropped."""

    def row(transition: Transition, detail: str) -> RecordTransition:
        return RecordTransition(transition=transition, time_ms=now_ms, message_id=message_id, outcome=reason, detail=detail)

    for letter in died.letters:
        yield letter
        yield row(Transition.DEAD_LETTERED, str(letter.destination))
    if died.limit:
        yield row(Transition.DEAD_LETTER_DROPPED, died.limit)
    for destination in died.cycles:
        yield row(Transition.DEAD_LETTER_DROPPED, f"{destination}: it would close a cycle")
    if died.fault and not died.cycles:
        yield row(Transition.DEAD_LETTER_DROPPED, died.fault)
