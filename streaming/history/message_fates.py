"""Says in a sentence where a message is now, by the steps of its trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from state.commands import Transition
from state.model import Outcome
from streaming.history.sources.kafka_rows import REPLAYED
from streaming.history.times import shown_utc
from streaming.history.trace import DEAD_LETTER, PUBLISHED, RECEIPT, SUBMITTED, TraceStep


class Whereabouts(Enum):
    """Says where a message is. UNREAD: in Kafka, no session has read it. NOWHERE: routed to a client that does not get it.
    ASIDE: with its session, until its `deliver-at`.
    QUEUE, WIRE, HANDSHAKE: with its client's session.
    """

    UNREAD = auto()
    NOWHERE = auto()
    ASIDE = auto()
    QUEUE = auto()
    WIRE = auto()
    HANDSHAKE = auto()
    ENDED = auto()

    @property
    def is_with_session(self) -> bool:
        """True if what becomes of the message depends on the client's connection."""
        return self in (Whereabouts.QUEUE, Whereabouts.WIRE, Whereabouts.HANDSHAKE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFate:
    """The fate of a message with one client.

    Attributes:
        sentence: For people, without a full stop.
    """

    client_id: str
    whereabouts: Whereabouts
    sentence: str


_QUEUED = (Transition.ACCEPTED, Transition.QUEUED, Transition.RETURNED, Transition.REFUSED)
_SENT = (Transition.SENT, Transition.FAST_SENT, Transition.RESENT, Transition.REPLAYED)
_PLACES = {
    SUBMITTED: Whereabouts.UNREAD,
    REPLAYED: Whereabouts.UNREAD,
    RECEIPT: Whereabouts.ENDED,
    Transition.FINISHED.value: Whereabouts.ENDED,
    Transition.ROUTED_NOWHERE.value: Whereabouts.NOWHERE,
    Transition.SCHEDULED.value: Whereabouts.ASIDE,
    Transition.PUBREC.value: Whereabouts.HANDSHAKE,
    Transition.PUBREL_SENT.value: Whereabouts.HANDSHAKE,
    **{step.value: Whereabouts.QUEUE for step in _QUEUED},
    **{step.value: Whereabouts.WIRE for step in _SENT},
}
"""The other steps do not move a message. Nor does the end of a repetition that the session has dropped (`_is_repetition`)."""


def fates(steps: Sequence[TraceStep]) -> list[MessageFate]:
    """Returns what has become of the message, for each of its clients.

    A publication that no client got has one fate, without a client.

    Args:
        steps: Oldest first.
    """
    newest: dict[str, TraceStep] = {}
    taken: dict[str, TraceStep] = {}
    """The newest steps without the records of backends: one of a repetition is over with the repetition."""
    dropped: dict[str, list[TraceStep]] = {}
    for step in steps:
        if step.step not in _PLACES:
            continue
        if _is_repetition(step):
            dropped.setdefault(step.client_id, []).append(step)
            newest[step.client_id] = taken.get(step.client_id, step)
        else:
            newest[step.client_id] = step
            if step.step != SUBMITTED:
                taken[step.client_id] = step
    dead = {step.client_id for step in steps if step.step == DEAD_LETTER}
    found = [_fate(step, is_dead=client_id in dead, dropped=dropped.get(client_id, ())) for client_id, step in newest.items()]
    if not found and (published := [step for step in steps if step.step == PUBLISHED]):
        at = shown_utc(published[-1].time_ms)
        sentence = f"was published at {at}, and no client has it: nobody subscribed to its topic, or no matcher has read it yet"
        return [MessageFate(client_id="", whereabouts=Whereabouts.UNREAD, sentence=sentence)]
    return found


def _is_repetition(step: TraceStep) -> bool:
    return step.step == Transition.FINISHED and step.outcome == Outcome.DUPLICATE


def _fate(step: TraceStep, *, is_dead: bool, dropped: Sequence[TraceStep]) -> MessageFate:
    """Returns the fate of a message.

    Args:
        step: The newest one of the message itself; the end of a repetition if nothing else is known.
        is_dead: It has a dead letter.
        dropped: The ends of its repetitions.
    """
    whereabouts, client = _PLACES[step.step], step.client_id
    at = shown_utc(step.time_ms)
    match whereabouts:
        case Whereabouts.UNREAD:
            sentence = f"Kafka has it for {client} since {at}, and no session has read it yet"
        case Whereabouts.NOWHERE:
            sentence = f"{client} has it not: at {at} it had no session, or had unsubscribed"
        case Whereabouts.ASIDE:
            sentence = f"waits in {client}'s session since {at}, {step.detail}"
        case Whereabouts.QUEUE:
            sentence = f"waits in {client}'s queue since {at}"
        case Whereabouts.WIRE:
            sentence = f"was sent to {client} at {at} and is not acknowledged yet"
        case Whereabouts.HANDSHAKE:
            sentence = f"{client} has it; its QoS 2 handshake is not over"
        case Whereabouts.ENDED:
            sentence = f"ended as {step.outcome} for {client} at {at}"
            if is_dead and step.outcome not in ("delivered", "sent"):
                sentence += "; it is a dead letter"
    if _is_repetition(step):
        sentence = f"was dropped for {client} at {at}: the session had taken a message with this id before"
    elif dropped:
        what = "a repetition of it was" if len(dropped) == 1 else f"{len(dropped)} repetitions of it were"
        sentence += f"; {what} dropped, at {shown_utc(dropped[-1].time_ms)}"
    return MessageFate(client_id=client, whereabouts=whereabouts, sentence=sentence)
