import json
import pickle

import pandas as pd
import pytest

from state.commands import AcceptConnection, OpenFastPath, SendPublish
from state.events import Capability, ClientConnected, ConnectionLost, FastSent, PubAckReceived, Subscribed
from state.model import Message, Position, QoS
from state.records.events import encode_event, joined
from state.settings import RecordLimits
from streaming.engine.operator import session_operator, to_events
from streaming.engine.operator.cells import EVENTS, MESSAGES
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.session_operator import SessionOperator
from streaming.engine.operator.state_row import STATE_ROW_VERSION
from tests.unit.streaming.engine.operator.operator_host import NOW, SETTINGS, Host, commands, fail_on, group_state, is_poison, of


def test_events_come_before_messages_and_each_in_the_order_of_its_offsets() -> None:
    host = Host()
    cells = [host.message(b"1"), host.message(b"2"), host.connected()]
    accept, first, second = commands(host.run(*reversed(cells), frames=2))
    assert isinstance(accept, AcceptConnection)
    assert [first.payload, second.payload] == [b"1", b"2"]


def test_an_activation_gives_the_same_bytes_in_any_order_of_its_rows() -> None:
    host = Host()
    cells = [host.connected(), *(host.message(bytes([number])) for number in range(9))]
    results = []
    for order in (cells, cells[::-1], cells[3:] + cells[:3]):
        state = group_state()
        (frame,) = SessionOperator(SETTINGS)(("c",), iter([pd.DataFrame({"client_id": "c", "record": order})]), state)
        results.append((frame.to_dict("records"), tuple(state.get)))
    assert results[0] == results[1] == results[2]


def test_the_state_row_has_the_columns_and_the_next_deadline() -> None:
    host = Host()
    host.run(host.connected(), host.message(b"12345"))
    assert host.value is not None
    version, connected, inflight, queued, queued_bytes, oldest_ms, deadline_ms, blob = host.value
    assert (version, connected, inflight, queued, queued_bytes, oldest_ms) == (STATE_ROW_VERSION, True, 1, 0, 0, NOW)
    assert deadline_ms == NOW + SETTINGS.session.retry_interval_ms
    assert isinstance(blob, bytes)


def test_a_call_at_the_deadline_resends() -> None:
    host = Host()
    host.run(host.connected(), host.message())
    assert host.deadline_ms is not None
    (again,) = commands(host.run(host.due(), now_ms=host.deadline_ms))
    assert isinstance(again, SendPublish)
    assert again.dup
    assert host.deadline_ms == NOW + 2 * SETTINGS.session.retry_interval_ms


def test_a_session_with_nothing_to_wait_for_has_no_deadline() -> None:
    host = Host()
    host.run(host.connected())
    assert host.state._updated
    assert host.deadline_ms is None


def test_an_empty_session_is_removed() -> None:
    host = Host()
    host.run(host.connected(), host.event(ClientConnected(connection_id=2, commands_partition=0, session_expiry_interval_s=0)))
    assert host.value is not None
    host.run(host.event(ConnectionLost(connection_id=2)))
    assert host.value is None
    assert host.state._removed


def test_no_records_are_no_frame() -> None:
    host = Host(PipelineSettings(commands_partitions=2, ledger=False, receipts=False))
    host.run(host.connected())
    state = group_state(host.value)
    cells = [host.event(Subscribed(connection_id=1, subscriptions=()))]
    assert list(host.operator(("c",), iter([pd.DataFrame({"client_id": "c", "record": cells})]), state)) == []


def test_an_unreadable_event_is_a_dead_letter_and_the_others_are_applied() -> None:
    host = Host()
    records = host.run(host.cell(EVENTS, b"\x01\xff\x00"), host.connected())
    (letter,) = of(records, "dead-letters")
    assert letter["value"] == b"\x01\xff\x00"
    assert letter["headers"]["x-source-topic"] == b"inflight.events"
    assert letter["headers"]["x-last-death-reason"] == b"invalid"
    assert isinstance(commands(records)[0], AcceptConnection)


@pytest.mark.parametrize(
    ("key", "detail"), [(None, b"has no key"), (b"", b"has no key"), (b"\xff", b"not UTF-8"), (b"k" * 2_000, b"2000 bytes")]
)
def test_records_without_a_client_are_dead_letters_and_leave_no_state(key: bytes | None, detail: bytes) -> None:
    host = Host(client_id="")
    cells = [
        host.cell(MESSAGES, b"p", key=key, mqtt_topic=b"t"),
        host.cell(EVENTS, encode_event(PubAckReceived(connection_id=1, packet_id=1)), key=key),
    ]
    records = host.run(*cells)
    letters = of(records, "dead-letters")
    assert len(letters) == 2
    assert all(detail in letter["headers"]["x-detail"] for letter in letters)
    assert [json.loads(receipt["value"])["outcome"] for receipt in of(records, "receipts")] == ["invalid"]
    assert len(of(records, "ledger")) == 2
    assert host.value is None


def test_an_event_on_which_the_session_fails_is_a_dead_letter(monkeypatch) -> None:
    fail_on(monkeypatch, is_poison)
    host = Host()
    records = host.run(host.connected(), host.message(b"1"), host.message(b"poison"), host.message(b"2"))
    assert [command.payload for command in commands(records)[1:]] == [b"1", b"2"]
    (letter,) = of(records, "dead-letters")
    assert letter["value"] == b"poison"
    assert b"a mistake of ours" in letter["headers"]["x-detail"]


def test_of_events_in_one_record_only_the_failing_one_is_a_dead_letter(monkeypatch) -> None:
    fail_on(monkeypatch, lambda event: getattr(event, "packet_id", 0) == 2)
    host = Host()
    host.run(host.connected(), host.message(b"1"), host.message(b"2"), host.message(b"3"))
    record = joined([encode_event(PubAckReceived(connection_id=1, packet_id=packet_id)) for packet_id in (1, 2, 3)])
    records = host.run(host.cell(EVENTS, record))
    assert len(of(records, "receipts")) == 2
    (letter,) = of(records, "dead-letters")
    assert letter["value"] == record


def test_numbers_that_only_a_damaged_event_can_have_do_not_stop_the_query() -> None:
    host = Host()
    huge = 2**63
    event = ClientConnected(
        connection_id=huge, commands_partition=0, clean_start=False, session_expiry_interval_s=huge, receive_maximum=huge
    )
    host.run(host.event(event), host.message())
    host.run(host.event(ConnectionLost(connection_id=2**63)))
    assert host.value is not None
    assert all(value < 2**63 for value in host.value if isinstance(value, int))


def test_a_worker_makes_the_operator_once(monkeypatch) -> None:
    monkeypatch.setattr(session_operator.gc, "freeze", lambda: None)
    monkeypatch.setattr(session_operator.gc, "set_threshold", lambda *numbers: None)
    pickled = pickle.dumps(SessionOperator(SETTINGS))
    assert pickle.loads(pickled).operator is pickle.loads(pickled).operator


def test_fast_sends_are_adopted_and_a_wrong_report_costs_one_record() -> None:
    host = Host()
    connected = ClientConnected(connection_id=1, commands_partition=1, clean_start=False, capabilities=Capability.FAST_PATH)
    opened = host.run(host.event(connected), host.message(b"1"))
    after = host.offset
    assert [type(command) for command in commands(opened)] == [AcceptConnection, SendPublish, OpenFastPath]
    assert commands(opened)[-1].after == Position(0, after)
    assert len(of(opened, "routes")) == 1

    def sent(offset: int, previous: int) -> bytes:
        message = Message(message_id=f"m{offset}", topic="t", payload=b"p", accepted_ms=NOW + 5_000)
        return host.event(
            FastSent(
                connection_id=1, position=Position(0, offset), previous=previous, packet_id=40_000, qos=QoS(1), message=message,
                sent_ms=NOW,
            )
        )  # fmt: skip

    told = host.run(sent(100, after), sent(101, 100), host.event(PubAckReceived(connection_id=1, packet_id=40_000)))
    (receipt,) = [json.loads(record["value"]) for record in of(told, "receipts") if b'"m100"' in record["value"]]
    assert (receipt["outcome"], receipt["fast_path"], receipt["accepted_ms"]) == ("delivered", True, NOW)
    (letter,) = of(told, "dead-letters")
    assert b"SessionMisuse" in letter["headers"]["x-detail"]


def test_a_message_that_a_gateway_has_sent_costs_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    host, read = Host(), []
    connected = ClientConnected(connection_id=1, commands_partition=1, clean_start=False, capabilities=Capability.FAST_PATH)
    host.run(host.event(connected), host.message(b"1"))
    after = host.offset
    message = Message(message_id="m", topic="t", payload=b"p", accepted_ms=NOW)
    sent = FastSent(
        connection_id=1,
        position=Position(0, after + 2),
        previous=after,
        packet_id=40_000,
        qos=QoS(1),
        message=message,
        sent_ms=NOW,
    )
    monkeypatch.setattr(to_events, "message_event", lambda record, *_, **__: read.append(record.offset))
    records = host.run(host.event(sent), host.message(b"p"))
    assert not read
    rows = [row["transition"] for record in of(records, "ledger") for row in json.loads(record["value"])]
    assert rows == ["accepted", "fast_sent"]


def test_a_queued_message_that_no_record_can_carry_any_more_is_a_dead_letter() -> None:
    host = Host()
    host.run(host.connected())
    host.run(host.event(ConnectionLost(connection_id=1, reason="cable")))
    host.run(host.message(b"x" * 250_000))
    limits = RecordLimits(max_payload_bytes=1_000, max_record_bytes=140_000)
    lowered = Host(PipelineSettings(commands_partitions=2, limits=limits))
    lowered.value = host.value
    records = lowered.run(lowered.event(ClientConnected(connection_id=2, commands_partition=1, clean_start=False)))
    (letter,) = of(records, "dead-letters")
    assert letter["headers"]["x-first-death-reason"] == b"too-large"
    assert all(len(record["value"] or b"") < 140_000 for record in of(records, "commands"))


@pytest.mark.parametrize(("expiration", "expiry_s"), [(4_294_967_295_000, 4_294_967_295), (1, 1)])
def test_an_expiration_at_the_ends_of_its_range_reaches_the_device(expiration: int, expiry_s: int) -> None:
    host = Host()
    host.run(host.connected())
    records = host.run(host.message(b"p", expiration=b"%d" % expiration))
    (publish,) = [command for command in commands(records) if isinstance(command, SendPublish)]
    assert publish.expiry_interval_s == expiry_s
    assert host.deadline_ms is not None


@pytest.mark.parametrize(("expiration", "outcome"), [(0, "expired"), (4_294_967_295_001, "invalid")])
def test_an_expiration_that_nobody_can_wait_for_has_its_outcome(expiration: int, outcome: str) -> None:
    host = Host()
    host.run(host.connected())
    host.run(host.event(ConnectionLost(connection_id=1, reason="cable")))
    records = host.run(host.message(b"p", expiration=b"%d" % expiration))
    assert [json.loads(receipt["value"])["outcome"] for receipt in of(records, "receipts")] == [outcome]
