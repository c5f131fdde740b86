"""Builds the commands for a record that reaches no session, because it is unreadable or its key is no client id.

The ledger gets REFUSED, and the whole record becomes a dead letter with the reason `invalid`. A message gets a receipt too. If a
message breaks the contract but its key is a client id, that client's session refuses it instead.
"""

from state.commands import Command, DeadLetter, RecordTransition, Transition
from state.dead_letters.dead_letter import with_death
from state.dead_letters.exchanges import DEAD_LETTERS
from state.dead_letters.message_end import receipt_command
from state.model import ClientId, Message, MessageId, Outcome
from state.outbound.inflight_window import Delivery
from state.records.routing import MAX_RECIPIENTS


def unread(value: bytes | None, *, message_id: MessageId, accepted_ms: int) -> Message:
    """Makes the message of a dead letter from an unreadable record, of which only the bytes are known.

    Args:
        message_id: The record's position.
    """
    return Message(message_id=message_id, topic="", payload=value or b"", accepted_ms=accepted_ms)


def refuse_event(message: Message, *, client_id: ClientId, detail: str, now_ms: int) -> tuple[Command, ...]:
    """Returns the commands for a record of `inflight.events`.

    Args:
        client_id: The record's key; empty if it is no client id.
        detail: Text for people.
    """
    dead = with_death(message, queue=client_id, reason=Outcome.INVALID, time_ms=now_ms, exchange=DEAD_LETTERS)
    return (
        RecordTransition(
            transition=Transition.REFUSED,
            time_ms=now_ms,
            message_id=message.message_id,
            outcome=Outcome.INVALID,
            detail=detail,
        ),
        DeadLetter(message=dead, reason=Outcome.INVALID, time_ms=now_ms, detail=detail),
    )


def refuse_message(message: Message, *, client_id: ClientId, detail: str, now_ms: int) -> tuple[Command, ...]:
    """Returns the commands for a record of `inflight.messages`: those of `refuse_event` and the receipt."""
    never_sent = Delivery(message=message, order=0, qos=message.qos)
    receipt = receipt_command(never_sent, Outcome.INVALID, client_id=client_id, now_ms=now_ms, detail=detail)
    return (*refuse_event(message, client_id=client_id, detail=detail, now_ms=now_ms), receipt)


def fault_of_key(key: bytes | None, *, recipients: int = 0, max_client_id_bytes: int) -> str:
    """Returns why a key is no client id, for people.

    Args:
        recipients: Headers that name a recipient.
    """
    if key is None and recipients > MAX_RECIPIENTS:
        return f"the record names {recipients} recipients: at most {MAX_RECIPIENTS} are allowed in one record"
    if not key:
        return (
            "the record has no key: the key is the client id that a record is for, or its headers recipient-CLIENT name several"
        )
    try:
        key.decode()
    except UnicodeDecodeError:
        return "the key is not UTF-8: the key of a record is the client id that it is for"
    return f"the key has {len(key)} bytes: a client id has at most {max_client_id_bytes}"


def fault_of_size(topic: str, partition: int, offset: int, *, size_bytes: int, max_bytes: int) -> str:
    """Returns why a record was not taken in, for people.

    Args:
        size_bytes: Of the record after decompression.
        max_bytes: The largest record that is taken in.
    """
    return (
        f"the record at offset {offset} in partition {partition} of {topic} has {size_bytes} bytes after decompression: at most "
        f"{max_bytes} are taken in (engine.max_record_bytes), and this copy has none of them"
    )


def fault_of_time(topic: str, partition: int, offset: int, *, timestamp_ms: int) -> str:
    """Returns why a record with such a timestamp was not taken in, for people."""
    return (
        f"the record at offset {offset} in partition {partition} of {topic} has the timestamp {timestamp_ms}, beyond what Spark "
        "can read: a timestamp is in ms since 1970. This copy has no content"
    )
