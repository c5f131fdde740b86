"""What leaves when a record never reaches a session, because nobody can read it or its key names no client: its commands.

The ledger says REFUSED, the whole record becomes a dead letter with the reason `invalid`, and a message gets its receipt, too. A
message that breaks the contract but names its client is refused by that client's session instead.
"""

from state.commands import Command, DeadLetter, RecordTransition, Transition
from state.dead_letters.dead_letter import with_death
from state.dead_letters.exchanges import DEAD_LETTERS
from state.dead_letters.message_end import receipt_command
from state.model import ClientId, Message, MessageId, Outcome
from state.outbound.inflight_window import Delivery


def unread(value: bytes | None, *, message_id: MessageId, accepted_ms: int) -> Message:
    """A record of which nothing is known but its bytes, as the message of its dead letter. message_id: the record's position."""
    return Message(message_id=message_id, topic="", payload=value or b"", accepted_ms=accepted_ms)


def refuse_event(message: Message, *, client_id: ClientId, detail: str, now_ms: int) -> tuple[Command, ...]:
    """For a record of `inflight.events`. client_id: the record's key, empty if it is no client id. detail: for people."""
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
    """For a record of `inflight.messages`: the same, and the receipt. Arguments as in `refuse_event`."""
    never_sent = Delivery(message=message, order=0, qos=message.qos)
    receipt = receipt_command(never_sent, Outcome.INVALID, client_id=client_id, now_ms=now_ms, detail=detail)
    return (*refuse_event(message, client_id=client_id, detail=detail, now_ms=now_ms), receipt)


def fault_of_key(key: bytes | None, *, max_client_id_bytes: int) -> str:
    """Why a key that is no client id is none, for people."""
    if not key:
        return "the record has no key: the key of a record is the client id that it is for"
    try:
        key.decode()
    except UnicodeDecodeError:
        return "the key is not UTF-8: the key of a record is the client id that it is for"
    return f"the key has {len(key)} bytes: a client id has at most {max_client_id_bytes}"
