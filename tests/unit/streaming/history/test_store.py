from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming.config.errors import KafkaUnreachable
from streaming.config.settings import Settings
from streaming.history.database import Database
from streaming.history.errors import BadQuestion, NoArchive
from streaming.history.relations import Relation
from streaming.history.session_relation import sessions_table
from streaming.history.sources.source import SourceChoice, SourceLimits
from streaming.history.store import Store
from tests.support.stored_history import (
    T0,
    Topics,
    archive,
    at_offsets,
    ledger,
    letter,
    publication,
    receipt,
    session,
    settings_in,
)

HOUR_MS = 3_600_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


def store_of(settings: Settings, *sessions: dict[str, Any], **options: Any) -> Store:
    return Store(settings, lambda directory: sessions_table(sessions), **options)


def answer(store: Store, question: str) -> list[tuple[Any, ...]]:
    with store:
        return list(store.ask(question).rows)


def test_a_question_joins_all_five_relations(settings: Settings, topics: Topics) -> None:
    topics.add(ledger("c", "accepted", "sent", message_id="m"), receipt("c", "m"), letter("c", "d", T0))
    topics.add(publication("c", "up", b"21.5"))
    question = """
        SELECT s.client_id, s.queued, l.transition, r.latency_ms, d.reason, u.payload_text::DOUBLE
        FROM sessions s JOIN ledger l USING (client_id) JOIN receipts r USING (client_id, message_id)
        JOIN dead_letters d USING (client_id) JOIN uplink u USING (client_id) ORDER BY l.row_index
    """
    found = answer(store_of(settings, session("c", queued=3), session("other")), question)
    assert found == [("c", 3, "accepted", 5, "expired", 21.5), ("c", 3, "sent", 5, "expired", 21.5)]


def test_a_row_that_is_archived_and_in_kafka_comes_once(settings: Settings, topics: Topics) -> None:
    old, new = ledger("c", "accepted", "sent", at=5), ledger("c", "finished", at=7, time_ms=T0 + 9)
    copies = [receipt("c", "m", at=3), letter("c", "d", T0, at=3), publication("c", "t", b"x", at=3)]
    archive(settings, old, *copies)
    # A micro-batch that was executed again has written the records once more, behind the newest that is archived.
    topics.add(old, old._replace(offset=6), new, new._replace(offset=8))
    topics.add(*copies, *(record._replace(offset=4) for record in copies))
    with store_of(settings) as store:
        steps = list(store.ask("SELECT transition FROM ledger ORDER BY batch_ms, row_index").rows)
        counts = [list(store.ask(f"SELECT count(*) FROM {name}").rows) for name in ("receipts", "dead_letters", "uplink")]
    assert steps == [("accepted",), ("sent",), ("finished",)]
    assert counts == [[(1,)]] * 3


def test_only_what_the_archive_lacks_is_read_of_kafka(settings: Settings, topics: Topics) -> None:
    records = at_offsets(ledger("c", "accepted", time_ms=T0 + number) for number in range(100))
    archive(settings, *records[:90])
    topics.add(*records)
    with store_of(settings) as store:
        assert list(store.ask("SELECT count(*) FROM ledger").rows) == [(100,)]
        assert store.described()[2] == "  inflight.ledger: partition 0, 10 records; older ones are in the tables"
    assert {record.offset for record in topics.read} == set(range(90, 100))


def test_a_partition_without_archived_rows_of_the_day_misses_none(settings: Settings, topics: Topics) -> None:
    archive(settings, ledger("c", "accepted", at=9))
    quiet = ledger("d", "accepted", partition=1, time_ms=T0 - 2 * HOUR_MS)
    waiting = ledger("d", "finished", partition=1, at=1, time_ms=T0 - 1)
    topics.add(quiet, waiting, ledger("c", "accepted", at=9))
    found = answer(store_of(settings), "SELECT client_id, transition FROM ledger ORDER BY 1")
    assert found == [("c", "accepted"), ("d", "finished")], "what is older than the margin has been archived long ago"


def test_a_topic_that_was_made_anew_is_read_from_its_beginning(settings: Settings, topics: Topics) -> None:
    archive(settings, ledger("c", "accepted", at=5))
    topics.add(*at_offsets(ledger("c", "connected", time_ms=T0 + HOUR_MS + number) for number in range(20)))
    assert answer(store_of(settings), "SELECT count(*) FROM ledger WHERE transition = 'connected'") == [(20,)]


def test_without_kafka_the_tables_answer_and_say_so(settings: Settings, topics: Topics) -> None:
    archive(settings, ledger("c", "accepted"))
    topics.is_away = True
    with store_of(settings) as store:
        assert list(store.ask("SELECT client_id FROM ledger").rows) == [("c",)]
        assert store.described()[-1].startswith("without what is newer: Kafka at ")
    with pytest.raises(KafkaUnreachable):
        answer(store_of(settings, choice=SourceChoice.KAFKA), "FROM ledger")


def test_a_chosen_source_is_the_only_one(settings: Settings, topics: Topics) -> None:
    topics.add(ledger("new", "accepted"))
    with pytest.raises(NoArchive, match=r"archive\.enabled"):
        answer(store_of(settings, choice=SourceChoice.DELTA), "FROM ledger")
    archive(settings, ledger("old", "accepted", at=9))
    for choice, client in (SourceChoice.DELTA, "old"), (SourceChoice.KAFKA, "new"):
        assert answer(store_of(settings, choice=choice), "SELECT client_id FROM ledger") == [(client,)]


def test_limits_hold_for_tables_and_topics(settings: Settings, topics: Topics) -> None:
    archive(settings, letter("c", "old", T0 - HOUR_MS), letter("c'", "archived", T0))
    topics.add(letter("c", "old", T0 - HOUR_MS), letter("c'", "archived", T0, at=1), letter("c'", "new", T0 + 1, at=2))
    limits = SourceLimits(since_ms=T0 - 1, client_id="c'")
    found = answer(store_of(settings, limits=limits), "SELECT message_id FROM dead_letters ORDER BY died_ms")
    assert found == [("archived",), ("new",)]


def test_at_most_so_many_records_of_kafka_are_read_the_newest(settings: Settings, topics: Topics) -> None:
    topics.add(*at_offsets(ledger("c", "accepted", time_ms=T0 + number) for number in range(50)))
    with store_of(settings, limits=SourceLimits(max_records=5)) as store:
        assert list(store.ask("SELECT count(*), min(batch_ms) FROM ledger").rows) == [(5, T0 + 45)]
        assert store.complete_since_ms("ledger") == T0 + 45


def test_sessions_need_neither_tables_nor_kafka(settings: Settings, topics: Topics) -> None:
    topics.is_away = True
    rows = session("a", queued=2, oldest_unacked="2026-09-21T14:13:20.000Z"), session("b", next_deadline="+99999-01-01T00:00:00Z")
    question = "SELECT client_id, year(oldest_unacked), next_deadline IS NULL FROM sessions ORDER BY 1"
    assert answer(store_of(settings, *rows), question) == [("a", 2026, False), ("b", None, True)]


def test_columns_have_the_documented_types_and_meanings(settings: Settings, topics: Topics) -> None:
    with store_of(settings) as store:
        described = list(store.ask("DESCRIBE dead_letters").rows)
        answered = {row[0]: row[1] for row in store.ask("DESCRIBE SELECT * FROM dead_letters").rows}
        assert ("died_ms", "BIGINT", "when the message died, ms since 1970: the same for a copy") in described
        assert [row[0] for row in described] == list(answered)
        assert (answered["time"], answered["payload"], answered["date"]) == ("TIMESTAMP WITH TIME ZONE", "BLOB", "DATE")
        assert next(store.ask("DESCRIBE sessions").rows) == ("client_id", "STRING", "whose session")
        with pytest.raises(BadQuestion, match="there is no table nonsense"):
            store.ask("DESCRIBE nonsense")


def test_a_wrong_question_says_the_tables_and_a_condition_the_columns(settings: Settings, topics: Topics) -> None:
    with store_of(settings) as store:
        with pytest.raises(BadQuestion, match=r"nonsense.*The tables are: ledger, dead_letters.*sessions; .*DESCRIBE"):
            store.ask("SELECT nonsense FROM ledger")
        with pytest.raises(BadQuestion, match=r"nowhere does not exist\. The tables are"):
            store.ask("FROM nowhere")
        with pytest.raises(BadQuestion, match=r"not found in FROM clause: did you mean .*outcome_ms.*\? The tables are"):
            store.ask("SELECT outcom_ms FROM receipts")
        with pytest.raises(BadQuestion, match=r"--where colour = 1: .*colour.* The columns are dead_letter_id, "):
            list(store.where("dead_letters", "colour = 1", order="died_ms"))


def test_what_cannot_be_read_is_a_row_too(settings: Settings, topics: Topics) -> None:
    broken = ledger("c", "x")._replace(value=b"\xff")
    huge = ledger("c", "sent", packet_id=1 << 40, at=1)
    topics.add(broken, huge)
    found = answer(store_of(settings), "SELECT transition, detail, packet_id FROM ledger ORDER BY kafka_offset")
    assert found == [("unreadable", "\N{REPLACEMENT CHARACTER}", None), ("sent", "", None)]


def test_rows_go_to_the_database_in_portions_of_limited_size(
    settings: Settings, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    portions: list[int] = []
    add = Relation.add

    def counted(relation: Relation, database: Database, rows: list[dict[str, Any]]) -> None:
        portions.append(len(rows))
        add(relation, database, rows)

    monkeypatch.setattr(Relation, "add", counted)
    monkeypatch.setattr("streaming.history.relations._PORTION", 4)
    monkeypatch.setattr("streaming.history.relations._PORTION_BYTES", 1_000)
    sizes = (1, 1, 1, 1, 1, 999, 1, 1)
    topics.add(*at_offsets(letter("c", f"m{at}", T0, value=b"x" * size) for at, size in enumerate(sizes)))
    assert answer(store_of(settings), "SELECT count(*) FROM dead_letters") == [(8,)]
    assert portions == [4, 2, 2]


@pytest.fixture
def wide(settings: Settings, topics: Topics) -> Iterator[Store]:
    topics.add(letter("c", "m", T0, value=b"\xff\x00"))
    with store_of(settings) as store:
        yield store


def test_a_payload_is_binary_and_as_text_where_it_is_text(wide: Store) -> None:
    (found,) = wide.where("dead_letters", None, order="died_ms")
    assert (found["payload"], found["payload_text"]) == ("/wA=", None)
