from dataclasses import dataclass, field

import msgspec

from state.model import Outcome
from state.records.ledger import LedgerRow, encode_ledger_rows
from state.records.receipts import Receipt
from streaming.config.settings import Settings
from streaming.history.sources.delta import DEAD_LETTER_COLUMNS, LEDGER_COLUMNS
from streaming.history.sources.kafka_rows import RowsOfMessage
from streaming.history.sources.source import MessageRows

T0 = 1_790_000_000_000
TOPICS = Settings().topics
MESSAGE = 'm "1"\\'


@dataclass(frozen=True, kw_only=True)
class FakeRecord:
    topic: str
    value: bytes | None
    key: bytes | None = b"c1"
    partition: int = 2
    offset: int = 7
    timestamp: int = T0
    headers: list[tuple[str, bytes]] = field(default_factory=list)


def ledger(*message_ids: str | None, offset: int = 7, client_id: str = "c1") -> FakeRecord:
    rows = [
        LedgerRow(client_id=client_id, batch_ms=T0, transition="sent", time_ms=T0 + 1, message_id=name) for name in message_ids
    ]
    return FakeRecord(topic=TOPICS.ledger, key=client_id.encode(), value=encode_ledger_rows(rows), offset=offset)


def receipt(message_id: str) -> FakeRecord:
    value = Receipt(
        message_id=message_id, client_id="c1", outcome=Outcome.DELIVERED, reason_code=0, attempts=2, accepted_ms=T0,
        first_sent_ms=T0, outcome_ms=T0 + 5, recorded_ms=T0 + 5,
        detail="", final=True, destinations=(), deaths=0, correlation_data=b"\x00",
        fast_path=False,
        traceparent=None,
    )  # fmt: skip
    return FakeRecord(topic=TOPICS.receipts, value=msgspec.json.encode(value))


def letter(message_id: str | None, *, value: bytes = b"p", offset: int = 7, topic: str = TOPICS.dead_letters) -> FakeRecord:
    headers = [] if message_id is None else [("message-id", message_id.encode())]
    headers += [
        ("x-death", b'[{"queue":"c1","reason":"expired","count":3,"time":1789999999000,"exchange":"e","routing-keys":[]}]'),
        ("x-last-death-reason", b"expired"),
        ("x-last-death-time", b"1789999999000"),
    ]
    return FakeRecord(topic=topic, value=value, headers=headers, offset=offset)


def rows_of(*records: FakeRecord, message_id: str = MESSAGE, client_id: str | None = None) -> MessageRows:
    found = RowsOfMessage(message_id, TOPICS, client_id)
    for record in records:
        found.add(record)
    return found.rows


def test_only_the_messages_own_ledger_rows_are_returned() -> None:
    (row,) = rows_of(ledger("other", MESSAGE, None), ledger("other")).ledger
    assert set(LEDGER_COLUMNS) <= row.keys()
    assert (row["row_index"], row["kafka_partition"], row["kafka_offset"]) == (1, 2, 7)
    assert row["time"].timestamp() == (T0 + 1) / 1_000


def test_an_id_that_is_only_a_part_of_another_one_is_not_found() -> None:
    assert not rows_of(ledger("m-10"), receipt("m-10"), letter("m-10"), message_id="m-1")


def test_a_record_that_was_written_twice_counts_once() -> None:
    rows = rows_of(
        ledger(MESSAGE), ledger(MESSAGE, offset=8), letter(MESSAGE), letter(MESSAGE, offset=8), letter(MESSAGE, value=b"q")
    )
    assert len(rows.ledger) == 1
    assert len(rows.dead_letters) == 2


def test_a_dead_letter_has_what_a_trace_shows_in_whatever_topic_it_is() -> None:
    (row,) = rows_of(letter(MESSAGE, topic="alarms.undelivered")).dead_letters
    assert set(DEAD_LETTER_COLUMNS) <= row.keys()
    assert (row["reason"], row["deaths"], row["died_ms"], row["kafka_topic"]) == ("expired", 3, T0 - 1_000, "alarms.undelivered")


def test_a_receipt_and_the_record_of_the_backend_are_found() -> None:
    submitted = FakeRecord(topic=TOPICS.messages, value=None, headers=[("message-id", MESSAGE.encode())])
    rows = rows_of(receipt(MESSAGE), submitted)
    assert [(row["outcome"], row["attempts"], row["outcome_ms"]) for row in rows.receipts] == [("delivered", 2, T0 + 5)]
    assert [(row["client_id"], row["time_ms"], row["kafka_offset"]) for row in rows.submitted] == [("c1", T0, 7)]


def test_a_message_without_an_id_is_called_by_its_position() -> None:
    named = FakeRecord(topic=TOPICS.messages, value=b"", headers=[("mqtt-topic", b"t")])
    assert len(rows_of(named, message_id=f"{TOPICS.messages}-2-7").submitted) == 1


def test_a_position_names_the_message_of_its_generation_only() -> None:
    named = FakeRecord(topic=TOPICS.messages, value=b"", headers=[("mqtt-topic", b"t")])
    for generation, found_as in (0, "-2-7"), (3, "-2-7-3"), (None, None):
        for suffix in ("-2-7", "-2-7-1", "-2-7-3"):
            found = RowsOfMessage(f"{TOPICS.messages}{suffix}", TOPICS, None, generation=generation)
            found.add(named)
            assert len(found.rows.submitted) == (suffix == found_as)


def test_rows_of_other_clients_are_left_out() -> None:
    assert len(rows_of(ledger(MESSAGE), ledger(MESSAGE, client_id="c2"), client_id="c2").ledger) == 1


def test_undecodable_records_belong_to_no_message() -> None:
    beginning = b'[{"message_id":' + msgspec.json.encode(MESSAGE)
    for broken in (b"}", b',"detail":"\xff"}]', b',"new":' + b"[" * 100_000):
        assert not rows_of(*(FakeRecord(topic=topic, value=beginning + broken) for topic in (TOPICS.ledger, TOPICS.receipts)))
    (row,) = rows_of(
        FakeRecord(
            topic=TOPICS.dead_letters,
            value=None,
            key=None,
            headers=[("message-id", MESSAGE.encode()), ("x-death", b"\xff"), ("x-last-death-time", b"soon")],
        )
    ).dead_letters
    assert (row["died_ms"], row["deaths"], row["client_id"], row["reason"]) == (T0, 0, "", None)


def test_a_time_that_no_table_can_hold_is_that_of_the_micro_batch() -> None:
    rows = [
        LedgerRow(client_id="c1", batch_ms=T0, transition="sent", time_ms=time_ms, message_id=MESSAGE)
        for time_ms in (-1, 1 << 60)
    ]
    found = rows_of(FakeRecord(topic=TOPICS.ledger, value=encode_ledger_rows(rows))).ledger
    assert [row["time"].timestamp() for row in found] == [T0 / 1_000] * 2
    rows = [msgspec.structs.replace(rows[0], batch_ms=1 << 60)]
    assert not rows_of(FakeRecord(topic=TOPICS.ledger, value=encode_ledger_rows(rows)))


def test_unknown_fields_of_a_newer_version_are_ignored() -> None:
    (newer_row,) = msgspec.json.decode(ledger(MESSAGE).value or b"")
    newer_row |= {"transition": "teleported", "a_field_of_tomorrow": 1}
    newer_receipt = msgspec.json.decode(receipt(MESSAGE).value or b"") | {"a_field_of_tomorrow": 1}
    rows = rows_of(
        FakeRecord(topic=TOPICS.ledger, value=msgspec.json.encode([newer_row])),
        FakeRecord(topic=TOPICS.receipts, value=msgspec.json.encode(newer_receipt)),
    )
    assert [row["transition"] for row in rows.ledger] == ["teleported"]
    assert [row["outcome"] for row in rows.receipts] == ["delivered"]


def routed(*clients: str, topic: str = TOPICS.messages, key: bytes | None = None, **headers: bytes) -> FakeRecord:
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    named += [(f"recipient-{client}", b"\x01...") for client in clients]
    return FakeRecord(topic=topic, key=key, value=b"p", headers=named)


def test_a_record_with_recipients_is_a_step_of_each() -> None:
    record, other = routed("c1", "c2", message_id=b"m"), routed("c1", message_id=b"n")
    assert [row["client_id"] for row in rows_of(record, other, message_id="m").submitted] == ["c1", "c2"]
    assert [row["client_id"] for row in rows_of(record, message_id="m", client_id="c2").submitted] == ["c2"]
    assert not rows_of(record, message_id="m", client_id="c3")


def test_a_publication_is_found_by_the_id_that_its_copies_have() -> None:
    device = routed(topic=TOPICS.uplink, key=b"pump", inflight_id=b"pump:1:9", mqtt_topic=b"plant/1")
    backend = routed(topic=TOPICS.publications, key=b"plant/1", message_id=b"job", mqtt_topic=b"plant/1")
    returned = routed(topic=TOPICS.publications, message_id=b"job", mqtt_topic=b"plant/1", mqtt_share=b"$share/g/plant/+")
    (published,) = rows_of(device, device, backend, message_id="pump:1:9").published
    assert (published["publisher"], published["topic"], published["kafka_topic"]) == ("pump", "plant/1", TOPICS.uplink)
    assert [row["share"] for row in rows_of(device, backend, returned, message_id="job").published] == ["", "$share/g/plant/+"]
    unnamed = routed(topic=TOPICS.publications, mqtt_topic=b"a")
    assert len(rows_of(unnamed, message_id=f"{TOPICS.publications}-2-7").published) == 1
