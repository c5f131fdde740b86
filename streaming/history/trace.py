"""Tells the life of one message, in order, from the rows of a source (streaming/history/sources):

1. a publication that was routed, as the step `published`, where the source has it;
2. the record by which a backend or a matcher gave it to us for a client, as the step `submitted`, where the source has it;
3. every ledger row with the message id;
4. every dead letter with it, as the step `dead letter`, after the ledger row of the session that wrote it;
5. its receipts, as the step `receipt`, of clients of which the ledger has no `finished` (for example with engine.ledger off).

The order is time, then the session's own order within a micro-batch.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

from state.commands import Transition
from state.records.record import position
from streaming.history.errors import NothingFound
from streaming.history.sources.source import MessageRows, Row, Source
from streaming.history.times import iso_utc

DEAD_LETTER: Final = "dead letter"
PUBLISHED: Final = "published"
SUBMITTED: Final = "submitted"
RECEIPT: Final = "receipt"
_FINISHED: Final = Transition.FINISHED.value


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """A thing that happened to the message.

    Attributes:
        time_ms: In ms since 1970; a record may name any time.
        client_id: For the step `published`, the device that published it; empty = a backend did.
        attempt: 0 = does not apply.
        packet_id, outcome: None = does not apply.
    """

    time_ms: int
    client_id: str
    step: str
    attempt: int = 0
    packet_id: int | None = None
    outcome: str | None = None
    reason_code: int = 0
    detail: str = ""

    def as_json(self) -> dict[str, Any]:
        document = asdict(self)
        return {"time": iso_utc(document.pop("time_ms")), **document}


def trace(source: Source, message_id: str) -> list[TraceStep]:
    """Returns the steps of a message, oldest first. Raises NothingFound, and what the source raises."""
    rows = source.of_message(message_id)
    if not rows:
        raise NothingFound(
            f"{source.not_found(f'message {message_id!r}')}\nElse check the id (`inflight send` prints it; without a message-id "
            "header it is topic-partition-offset)"
        )
    return in_order(rows)


def in_order(rows: MessageRows) -> list[TraceStep]:
    """Returns the steps that the rows say, oldest first."""
    finished = {row["client_id"] for row in rows.ledger if row["transition"] == _FINISHED}
    keyed = [((row["time_ms"], -1, *_position(row), 0), _published_step(row)) for row in rows.published]
    keyed += [((row["time_ms"], 0, *_position(row), 0), _submitted_step(row)) for row in rows.submitted]
    keyed += [((row["batch_ms"], 1, *_position(row), row["row_index"]), ledger_step(row)) for row in rows.ledger]
    keyed += [((row["died_ms"], 2, *_position(row), 0), _letter_step(row)) for row in rows.dead_letters]
    keyed += [
        ((row["recorded_ms"], 3, *_position(row), 0), _receipt_step(row))
        for row in rows.receipts
        if row["client_id"] not in finished
    ]
    return [step for _, step in sorted(keyed, key=lambda item: item[0])]


def ledger_step(row: Row) -> TraceStep:
    """Returns the step that a row of the ledger says."""
    return TraceStep(
        time_ms=round(row["time"].timestamp() * 1_000),
        client_id=row["client_id"],
        step=row["transition"],
        attempt=row["attempt"],
        packet_id=row["packet_id"],
        outcome=row["outcome"],
        reason_code=row["reason_code"],
        detail=row["detail"],
    )


def _published_step(row: Row) -> TraceStep:
    at = position(row["kafka_topic"], row["kafka_partition"], row["kafka_offset"])
    to = f"given back to {row['share']}" if row["share"] else f"to {row['topic']}"
    return TraceStep(time_ms=row["time_ms"], client_id=row["publisher"], step=PUBLISHED, detail=f"{to}, record {at}")


def _submitted_step(row: Row) -> TraceStep:
    at = position(row["kafka_topic"], row["kafka_partition"], row["kafka_offset"])
    return TraceStep(time_ms=row["time_ms"], client_id=row["client_id"], step=SUBMITTED, detail=f"record {at}")


def _letter_step(row: Row) -> TraceStep:
    times = "the first time" if row["deaths"] <= 1 else f"{row['deaths']} deaths by now"
    detail = f"{row['dead_letter_id']} in {row['kafka_topic']}, {times}"
    return TraceStep(time_ms=row["died_ms"], client_id=row["client_id"], step=DEAD_LETTER, outcome=row["reason"], detail=detail)


def _receipt_step(row: Row) -> TraceStep:
    return TraceStep(
        time_ms=row["outcome_ms"],
        client_id=row["client_id"],
        step=RECEIPT,
        attempt=row["attempts"],
        outcome=row["outcome"],
        reason_code=row["reason_code"],
        detail=row["detail"],
    )


def _position(row: Row) -> tuple[int, int]:
    return row["kafka_partition"], row["kafka_offset"]
