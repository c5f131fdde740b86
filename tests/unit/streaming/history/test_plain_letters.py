import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from state.records.dead_letters import LAST_DEATH, REPLAYS, TABLE, TRUNCATED, TRUNCATED_HEADERS
from streaming.history.errors import NothingFound
from streaming.history.plain_letters import candidates, listed, one
from streaming.history.replay import ReplayCount, ReplayOptions, SkipReason, letters
from streaming.history.sources.kafka_rows import letters_of, replays_of

T0 = 1_790_000_000_000


class Record(NamedTuple):
    """The part of kafka-python's record that is read."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


def letter(client_id: str, message_id: str, died_ms: int, *more: tuple[str, bytes], value: bytes = b"p", at: int = 0) -> Record:
    headers = [("message-id", message_id.encode()), ("mqtt-topic", b"t"), (f"{LAST_DEATH}reason", b"expired"), *more]
    headers.append((f"{LAST_DEATH}time", b"%d" % died_ms))
    return Record("inflight.dead-letters", 0, at, died_ms, client_id.encode(), value, headers)


def replayed(dead_letter_id: str) -> Record:
    row = {
        "client_id": "c",
        "batch_ms": T0,
        "transition": "dead_letter_replayed",
        "time_ms": T0,
        "detail": f"{dead_letter_id} sent again",
    }
    return Record("inflight.ledger", 0, 0, T0, b"c", json.dumps([row]).encode(), [])


class Source:
    """Kafka's topics with these records."""

    def __init__(self, *records: Record, ledger: tuple[Record, ...] = (), ledger_since_ms: int | None = None) -> None:
        self._records = records
        self._ledger = ledger
        self._since_ms = ledger_since_ms

    def plain_letters(self) -> Iterator[dict[str, Any]]:
        return letters_of(self._records, None, {b"own_table"})

    def plain_replays(self) -> frozenset[str]:
        return frozenset(replays_of(self._ledger))

    def complete_since_ms(self, name: str) -> int | None:
        return self._since_ms

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} would start Spark")


def ids(found: list[dict[str, Any]] | None) -> list[str]:
    return [letter["message_id"] for letter in found or []]


def skips(source: Source, options: ReplayOptions) -> dict[str, str | None]:
    return {found["message_id"]: found["skip"] for found in candidates(source, options) or []}  # type: ignore[arg-type]


def test_the_newest_dead_letters_come_first_and_each_once() -> None:
    copies = [letter("c", f"m{age}", T0 - age, at=9 - age) for age in (3, 1, 2)]
    foreign = letter("c", "other", T0, (TABLE, b"own_table"))
    source = Source(*copies, foreign, copies[0]._replace(offset=77))
    assert ids(listed(source, limit=2)) == ["m1", "m2"]  # type: ignore[arg-type]
    assert len(listed(source, limit=50) or []) == 3  # type: ignore[arg-type]
    assert listed(source, limit=50, matches=lambda row: row["reason"] == "maxlen") == []  # type: ignore[arg-type]


def test_a_listed_dead_letter_has_the_fields_of_a_row_as_json() -> None:
    (found,) = listed(Source(letter("c", "m", T0, value=b"\xff\x00")), limit=1) or []  # type: ignore[arg-type]
    assert (found["time"], found["date"]) == ("2026-09-21T14:13:20.000Z", "2026-09-21")
    assert (found["payload"], found["payload_text"]) == ("/wA=", None)
    assert found["headers"][0] == {"key": "message-id", "value": "bQ=="}
    assert json.dumps(found)


@pytest.mark.parametrize("time_ms", [(1 << 63) - 1, -5])
def test_a_dead_letter_of_any_time_is_listed(time_ms: int) -> None:
    record = Record("inflight.dead-letters", 0, 0, time_ms, b"c", b"p", [])
    (found,) = listed(Source(record), limit=1) or []  # type: ignore[arg-type]
    assert found["time"] == ("+292278994-08-17T07:12:55.807Z" if time_ms > 0 else "1969-12-31T23:59:59.995Z")


def test_one_dead_letter_is_found_by_the_beginning_of_its_id() -> None:
    source = Source(letter("c", "m1", T0), letter("c", "m2", T0))
    wanted = (listed(source, limit=9) or [])[0]  # type: ignore[arg-type]
    found = one(source, wanted["dead_letter_id"][:10])  # type: ignore[arg-type]
    assert found is not None
    assert found["headers"][0] == {"key": "message-id", "value": wanted["message_id"]}
    with pytest.raises(NothingFound, match="there is no dead letter 'zz'"):
        one(source, "zz")  # type: ignore[arg-type]
    with pytest.raises(NothingFound, match="several"):
        one(source, "")  # type: ignore[arg-type]


def test_a_replay_skips_what_would_be_sent_in_circles() -> None:
    done = letter("c", "done", T0)
    (done_id,) = [found["dead_letter_id"] for found in listed(Source(done), limit=1) or []]  # type: ignore[arg-type]
    source = Source(
        letter("c", "twice", T0 - 9, at=1),
        letter("c", "twice", T0 - 1, at=2),
        letter("c", "often", T0, (REPLAYS, b"3")),
        letter("", "lost", T0),
        letter("c", "cut", T0, (TRUNCATED, b"1")),
        letter("c", "cut-headers", T0, (TRUNCATED_HEADERS, b"9")),
        letter("c", "old", T0 - 100),
        letter("c", "fine", T0),
        done,
        ledger=(replayed(done_id),),
        ledger_since_ms=T0 - 50,
    )
    found = candidates(source, ReplayOptions(where=None)) or []  # type: ignore[arg-type]
    assert [(letter["message_id"], letter["skip"]) for letter in found if letter["message_id"] == "twice"] == [
        ("twice", SkipReason.SUPERSEDED.name),
        ("twice", None),
    ]
    assert skips(source, ReplayOptions(where=None)) | {"twice": None} == {
        "twice": None,
        "often": SkipReason.TOO_OFTEN.name,
        "lost": SkipReason.NO_CLIENT.name,
        "cut": SkipReason.CUT.name,
        "cut-headers": SkipReason.CUT.name,
        "old": SkipReason.NOT_KNOWN.name,
        "fine": None,
        "done": SkipReason.REPLAYED_BEFORE.name,
    }
    again = skips(source, ReplayOptions(where=None, again=True, to="d", max_replays=9))
    assert [name for name, skip in again.items() if skip] == ["cut", "cut-headers"]


def test_what_is_planned_can_be_sent() -> None:
    count = ReplayCount()
    options = ReplayOptions(where=None)
    found = candidates(Source(letter("c", "m", T0, value=b"\xff")), options) or []  # type: ignore[arg-type]
    (chosen,) = letters(found, options, count)
    assert (chosen.client_id, chosen.message.message_id, chosen.message.payload, chosen.message.topic) == ("c", "m", b"\xff", "t")
    assert count.matched == 1


def test_more_than_one_process_should_hold_is_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.history.plain_letters._MAX_HELD_BYTES", 10)
    source = Source(letter("c", "m", T0, value=b"x" * 11))
    assert candidates(source, ReplayOptions(where=None)) is None  # type: ignore[arg-type]
