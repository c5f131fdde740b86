"""Sends dead letters again, with their history, to the queue that they died in or to another. They come from the relation
`dead_letters` of the store (streaming/history/store.py).

They go the way of the engine's own dead letters to `client:`, as a `MessageReturned` in `inflight.events`. No backend can write
one, so the history counts (docs/guides/dead_letters.md). The message keeps its id, and its trace goes on.

Steps for each portion of dead letters, in this order:
1. send the events and wait until Kafka has confirmed all of them;
2. write a ledger row `dead_letter_replayed` for each, and wait again;
3. count them.
If the process is killed between 1 and 2, a repeated command sends the portion again, and the sessions recognise the copies by
`return_id`.

`SkipReason` says what is not sent: what would be sent in circles, and what cannot be a message.
"""

import base64
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
from kafka import KafkaProducer
from kafka.errors import KafkaError

from state.events import MessageReturned
from state.model import Message
from state.records.dead_letters import REPLAY_OF, REPLAYS, TRUNCATED, TRUNCATED_HEADERS, is_about_the_death, parse_death_headers
from state.records.events import encode_event
from state.records.ledger import LedgerRow, encode_ledger_rows
from state.records.messages import BrokenContract, parse_message
from state.records.record import Header
from streaming.config.errors import KafkaUnreachable
from streaming.history.errors import BadQuestion
from streaming.history.sources.kafka_reader import check_listening
from streaming.history.sources.kafka_rows import REPLAYED

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_PORTION: Final = 500
_TIMEOUT_S: Final = 60.0


class SkipReason(StrEnum):
    """Why a dead letter is not sent; the text is for people."""

    SUPERSEDED = "a newer dead letter of the same message exists"
    REPLAYED_BEFORE = "it has been replayed before (--again sends it once more)"
    TOO_OFTEN = "it has been replayed and has died too often (--max-replays)"
    NOT_KNOWN = "it died before the ledger records that were read, so it may have been replayed before (--again sends it)"
    NO_CLIENT = "it names no client (--to sends it to one)"
    CUT = "its payload or its headers were cut, because it was larger than any message may be"
    NO_MESSAGE = "it breaks the contract of messages, so no session would take it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Chooses what is sent again.

    Attributes:
        where: SQL condition over `dead_letters`.
        to: Another client; None = the one whose queue it died in.
        rate: Messages a second; None = as fast as Kafka confirms them.
        max_replays: A message that was replayed and died this often is not sent again.
        again: Send what has been replayed before too.
        by: Who sends them again, for people; it stands in the ledger.
    """

    where: str | None
    to: str | None = None
    rate: float | None = None
    max_replays: int = 3
    again: bool = False
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLetter:
    """A dead letter that will be sent.

    Attributes:
        client_id: The client to which it will be sent.
    """

    dead_letter_id: str
    client_id: str
    message: Message


@dataclass(slots=True, kw_only=True)
class ReplayCount:
    """Counts what has become of the dead letters that matched."""

    matched: int = 0
    sent: int = 0
    skipped: dict[SkipReason, int] = field(default_factory=dict)

    def skip(self, why: SkipReason) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1


def with_skip(
    document: dict[str, Any], options: ReplayOptions, ledger_since_ms: int | None, *, is_newest: bool, was_replayed: bool
) -> dict[str, Any]:
    """Returns a dead letter with `skip`.

    Args:
        ledger_since_ms: Replays before this time, in ms since 1970, are not known; None = all are known.
    """
    rules = (
        (not is_newest, SkipReason.SUPERSEDED),
        (was_replayed and not options.again, SkipReason.REPLAYED_BEFORE),
        (document["died_ms"] < (ledger_since_ms or 0) and not options.again, SkipReason.NOT_KNOWN),
        (document["replays"] >= options.max_replays, SkipReason.TOO_OFTEN),
        (document["client_id"] == "" and options.to is None, SkipReason.NO_CLIENT),
        (any(header["key"] in (TRUNCATED, TRUNCATED_HEADERS) for header in document["headers"]), SkipReason.CUT),
    )
    return document | {"skip": next((why.name for applies, why in rules if applies), None)}


def letters(documents: Iterable[dict[str, Any]], options: ReplayOptions, count: ReplayCount) -> Iterator[ReplayLetter]:
    """Yields what is to be sent, and counts all documents in `count`.

    Args:
        documents: The result of `DeadLetters.candidates`.
    """
    for document in documents:
        count.matched += 1
        if document["skip"] is not None:
            count.skip(SkipReason[document["skip"]])
            continue
        letter = to_letter(document, options)
        if letter is None:
            count.skip(SkipReason.NO_MESSAGE)
        else:
            yield letter


def to_letter(document: dict[str, Any], options: ReplayOptions) -> ReplayLetter | None:
    """Makes a row of the table the message with its history; None for what is no message."""
    headers = [Header(header["key"], base64.b64decode(header["value"] or "")) for header in document["headers"]]
    own = [header for header in headers if not is_about_the_death(header.key)]
    own += [Header(REPLAY_OF, document["dead_letter_id"].encode()), Header(REPLAYS, b"%d" % (document["replays"] + 1))]
    try:
        message, _ = parse_message(
            own, payload=base64.b64decode(document["payload"]), accepted_ms=0, default_message_id=document["message_id"]
        )
    except BrokenContract:
        return None
    return ReplayLetter(
        dead_letter_id=document["dead_letter_id"],
        client_id=document["client_id"] if options.to is None else options.to,
        message=msgspec.structs.replace(message, history=parse_death_headers(headers)),
    )


def send_again(
    settings: "Settings",
    options: ReplayOptions,
    found: Iterator[ReplayLetter],
    count: ReplayCount,
    on_progress: Callable[[ReplayCount], None],
) -> None:
    """Sends all of them and counts them in `count`. Raises KafkaUnreachable when Kafka does not confirm."""
    check_listening(settings)
    try:
        producer = KafkaProducer(
            acks="all",
            enable_idempotence=True,
            client_id="inflight-replay",
            linger_ms=5,
            **settings.kafka.client_options(),
        )
        try:
            send_in_portions(producer, settings, options, found, count, on_progress)
        finally:
            producer.close(timeout=5)
    except KafkaError as error:
        raise KafkaUnreachable(
            f"{count.sent} were sent again, then Kafka did not confirm: {type(error).__name__}: {error}. Is `inflight up` "
            "running, or kafka.bootstrap_servers right? Repeat the command: what was sent is not sent twice"
        ) from error


def send_in_portions(
    producer: Any,
    settings: "Settings",
    options: ReplayOptions,
    found: Iterator[ReplayLetter],
    count: ReplayCount,
    on_progress: Callable[[ReplayCount], None],
) -> None:
    """Sends all letters through `producer`, which has kafka-python's `send(topic, key=, value=)` and futures.

    Raises kafka.errors.KafkaError when a record is not confirmed; what is counted was sent.
    """
    topics, rate, started_s = settings.topics, options.rate, None
    generation = f"{time.time_ns()}" if options.again else ""
    size = _PORTION if rate is None else max(1, min(_PORTION, int(rate / 4)))
    while portion := list(islice(found, size)):
        started_s = time.monotonic() if started_s is None else started_s
        if rate is not None:  # the rate holds over the whole run
            time.sleep(max(0.0, started_s + count.sent / rate - time.monotonic()))
        now_ms = time.time_ns() // 1_000_000
        _send(producer, topics.events, ((letter, returned_event(letter, generation)) for letter in portion))  # step 1
        _send(producer, topics.ledger, ((letter, ledger_record(letter, now_ms, options.by)) for letter in portion))  # step 2
        count.sent += len(portion)  # step 3
        on_progress(count)


def _send(producer: Any, topic: str, records: Iterable[tuple[ReplayLetter, bytes]]) -> None:
    futures = [producer.send(topic, key=letter.client_id.encode(), value=value) for letter, value in records]
    for future in futures:
        future.get(timeout=_TIMEOUT_S)


def returned_event(letter: ReplayLetter, generation: str) -> bytes:
    """Returns the record of `inflight.events`: the same for the same dead letter, client and generation."""
    return_id = f"replay\0{letter.dead_letter_id}\0{generation}"
    return encode_event(MessageReturned(message=letter.message, return_id=return_id))


def ledger_record(letter: ReplayLetter, now_ms: int, by: str) -> bytes:
    """Returns the record of `inflight.ledger` that says that somebody has sent the dead letter again, and who that was."""
    row = LedgerRow(
        client_id=letter.client_id,
        batch_ms=now_ms,
        transition=REPLAYED,
        time_ms=now_ms,
        message_id=letter.message.message_id,
        detail=f"{letter.dead_letter_id} sent again to {letter.client_id}" + (f" by {by}" if by else ""),
    )
    return encode_ledger_rows([row])


def parse_rate(text: str) -> float:
    """Converts `200/s`, `200`, `30/m` to messages a second. Raises BadQuestion."""
    number, _, unit = text.partition("/")
    try:
        rate = float(number) / {"": 1, "s": 1, "m": 60, "h": 3_600}[unit.strip()]
    except (ValueError, KeyError):
        rate = 0.0
    if not 0 < rate < 1e9:
        raise BadQuestion(f"--rate {text}: write messages a second, for example 200/s, or 30/m for thirty a minute")
    return rate
