"""state.dead_letters.quarantine: what leaves and what is kept when a client's session cannot be used.

tests/unit/streaming/engine/operator/test_quarantine.py plays whole activations.
"""

from typing import Any

import msgspec
import pytest

from state.commands import (
    ClearPresence,
    ClearThrottle,
    CloseConnection,
    Command,
    DeadLetter,
    ForwardPublication,
    RecordTransition,
    SendReceipt,
    SetPresence,
    Transition,
)
from state.dead_letters import quarantine
from state.dead_letters.exchanges import DEAD_LETTER_TOPIC
from state.dead_letters.policy import Policy
from state.dead_letters.quarantine import (
    LAST_SEQUENCE,
    Quarantine,
    begin,
    decode_quarantine,
    dropped,
    encode_quarantine,
    error_text,
    given_up,
    not_quarantined,
    not_restored,
    receive,
    restored,
    session_after,
)
from state.dead_letters.refused_record import refuse_message
from state.errors import UnreadableRecord
from state.events import (
    CancelRequested,
    Capability,
    ClientConnected,
    ClientDisconnected,
    ConnectionLost,
    FastSent,
    MessageRefused,
    MessageReturned,
    MessageSubmitted,
    PubAckReceived,
    PublishReceived,
    PubRecReceived,
    SessionPurged,
    Subscribed,
)
from state.model import Outcome, Position, QoS
from state.records.receipts import Receipt
from state.session_codec import encode_session
from state.settings import SessionSettings
from tests.scenarios.scenario import CLIENT, Scenario, message, will

NOW = 1_700_000_000_000
SETTINGS = SessionSettings(policy=Policy(dead_letter_reasons=frozenset()))
"""Settings by which no message becomes a dead letter."""
UNREADABLE = Quarantine(row_version=1, blob=b"?", since_ms=NOW, error="why")
PUBLICATION = PublishReceived(connection_id=1, packet_id=5, topic="up", payload=b"p", publication_id="events-0-1")


def held_of(s: Scenario, **fields: Any) -> Quarantine:
    return Quarantine(row_version=1, blob=encode_session(s.session), since_ms=NOW, error="why", **fields)


def of(commands: tuple[Command, ...], kind: type[Any]) -> list[Any]:
    return [command for command in commands if isinstance(command, kind)]


def receipts(commands: tuple[Command, ...]) -> list[Receipt]:
    return [command.receipt for command in of(commands, SendReceipt)]


def outcomes(commands: tuple[Command, ...]) -> dict[str, Outcome]:
    return {receipt.message_id: receipt.outcome for receipt in receipts(commands)}


def said(commands: tuple[Command, ...]) -> list[Transition]:
    return [command.transition for command in of(commands, RecordTransition)]


@pytest.mark.parametrize("events", [(), (PUBLICATION, PubRecReceived(connection_id=1, packet_id=7))])
def test_a_quarantine_survives_its_codec(events: Any) -> None:
    held = msgspec.structs.replace(UNREADABLE, events=events)
    assert decode_quarantine(encode_quarantine(held)) == held


def test_what_an_older_version_wrote_is_read() -> None:
    assert decode_quarantine(b"\x01\x94\x01\xc4\x01?\xcf\x00\x00\x01\x8b\xcf\xe5\x68\x00\xa3why") == UNREADABLE


@pytest.mark.parametrize("data", [b"", b"\x02?", b"\x01\xc1", b"\x01" + b"\x91" * 20_000, encode_quarantine(UNREADABLE)[:-1]])
def test_a_damaged_record_of_a_quarantine_is_kept_as_it_is(data: bytes) -> None:
    held = decode_quarantine(data)
    assert (held.row_version, held.blob, held.events) == (0, data, ())
    assert "the record of the quarantine" in held.error


def test_an_error_has_the_same_text_whenever_it_happens() -> None:
    assert (
        error_text(KeyError(object())) == error_text(KeyError(object())) == "the session failed: KeyError(<object object at 0x…>)"
    )
    assert error_text(UnreadableRecord("plain words")) == "plain words"
    assert error_text(ValueError("x"), "while y") == "while y: ValueError('x')"
    assert len(error_text(ValueError("x" * 10_000))) == 500


def test_the_blob_becomes_a_dead_letter_and_the_connection_is_closed() -> None:
    held = held_of(Scenario().connect())
    row, letter, close, offline = begin(held, client_id=CLIENT, settings=SETTINGS)
    assert isinstance(row, RecordTransition)
    assert (row.transition, row.time_ms, row.detail) == (Transition.QUARANTINED, NOW, "why")
    assert isinstance(letter, DeadLetter)
    assert (letter.message.payload, letter.reason, letter.destination) == (held.blob, Outcome.QUARANTINED, DEAD_LETTER_TOPIC)
    assert letter.detail.startswith("why; ")
    assert isinstance(close, CloseConnection)
    assert (close.sequence, close.reason_code) == (LAST_SEQUENCE, 0x83)
    assert isinstance(offline, SetPresence)
    assert (offline.online, offline.connection_id, offline.reason) == (False, 1, "quarantined: why")


@pytest.mark.parametrize("held", [UNREADABLE, held_of(Scenario().submit("m"))])
def test_without_a_known_connection_nothing_is_closed(held: Quarantine) -> None:
    assert said(begin(held, client_id=CLIENT, settings=SETTINGS)) == [Transition.QUARANTINED]
    assert of(begin(held, client_id=CLIENT, settings=SETTINGS), CloseConnection) == []


def test_backends_are_told_that_an_unreadable_client_is_offline() -> None:
    (offline,) = of(begin(UNREADABLE, client_id=CLIENT, settings=SETTINGS), SetPresence)
    assert (offline.online, offline.connection_id) == (False, 0), "which connection is not known"
    assert of(begin(held_of(Scenario().submit("m")), client_id=CLIENT, settings=SETTINGS), SetPresence) == []
    held = held_of(Scenario().connect())
    assert len(of(dropped(held, client_id=CLIENT, settings=SETTINGS, now_ms=NOW), ClearPresence)) == 1


def received(held: Quarantine, *events: Any) -> tuple[Quarantine, tuple[Command, ...]]:
    commands: tuple[Command, ...] = ()
    for event in events:
        held, more = receive(held, event, client_id=CLIENT, now_ms=NOW + 9, commands_partitions=3)
        commands += more
    return held, commands


@pytest.mark.parametrize("kind", [MessageSubmitted, MessageReturned])
def test_a_message_ends_with_dead_letter_and_receipt_in_any_policy(kind: Any) -> None:
    held, commands = received(UNREADABLE, kind(message=message("m")))
    assert held == UNREADABLE
    assert said(commands) == [Transition.FINISHED, Transition.DEAD_LETTERED]
    (letter,) = of(commands, DeadLetter)
    assert letter.destination == DEAD_LETTER_TOPIC
    (receipt,) = receipts(commands)
    assert (receipt.outcome, receipt.deaths, receipt.attempts, receipt.detail) == (Outcome.QUARANTINED, 1, 0, "why")


def test_a_message_that_breaks_the_contract_is_invalid_as_ever() -> None:
    _, commands = received(UNREADABLE, MessageRefused(message=message("m"), detail="no topic"))
    assert commands == refuse_message(message("m"), client_id=CLIENT, detail="no topic", now_ms=NOW + 9)


def test_a_connect_is_answered_and_not_kept() -> None:
    held, commands = received(UNREADABLE, ClientConnected(connection_id=8, commands_partition=2))
    assert held.events == ()
    (close,) = of(commands, CloseConnection)
    assert (close.connection_id, close.partition, close.reason_code) == (8, 2, 0x83)
    assert said(commands) == [Transition.REFUSED]


def test_what_a_device_says_is_kept_and_its_connection_closed_once() -> None:
    events = (PUBLICATION, Subscribed(connection_id=1, subscriptions=()), ConnectionLost(connection_id=1))
    held, commands = received(UNREADABLE, *events)
    assert held.events == events
    assert [close.partition for close in of(commands, CloseConnection)] == [0, 1, 2]


def test_a_purge_is_refused_because_a_drop_is_what_helps() -> None:
    held = Quarantine(row_version=1, blob=b"", since_ms=NOW, error="e")
    after, (said,) = receive(held, SessionPurged(), client_id=CLIENT, now_ms=NOW, commands_partitions=3)
    assert after == held
    assert isinstance(said, RecordTransition)
    assert (said.transition, said.detail) == (
        Transition.REFUSED,
        "the client is quarantined: drop its session instead of purging it",
    )


def test_the_end_of_a_connection_needs_no_closing() -> None:
    held, commands = received(UNREADABLE, ClientDisconnected(connection_id=1))
    assert held.events == (ClientDisconnected(connection_id=1),)
    assert commands == ()


def test_what_is_kept_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MAX_KEPT_BYTES", 130)
    held, _ = received(UNREADABLE, PUBLICATION, PubAckReceived(connection_id=1, packet_id=1))
    with pytest.raises(UnreadableRecord, match="130 bytes"):
        received(held, PubAckReceived(connection_id=1, packet_id=2))


def test_a_restored_session_has_every_event_and_no_connection() -> None:
    s = Scenario().connect(version=5).submit("a").submit("b", qos=2)
    kept = (
        PubAckReceived(connection_id=1, packet_id=1),
        PubRecReceived(connection_id=1, packet_id=2, pubrel_sent=True),
        PUBLICATION,
    )
    held = held_of(s, events=kept)
    session, commands = restored(held, client_id=CLIENT, settings=SETTINGS, now_ms=s.now_ms + 5)
    assert session.connection is None
    assert said(commands)[0] is Transition.RESTORED
    assert said(commands)[-1] is Transition.DISCONNECTED
    assert outcomes(commands) == {"a": Outcome.DELIVERED}
    assert [forwarded.payload for forwarded in of(commands, ForwardPublication)] == [b"p"]


def test_a_session_that_was_away_gets_its_time_again() -> None:
    s = Scenario().connect(version=5).submit("a").lose_connection()
    session, commands = restored(held_of(s), client_id=CLIENT, settings=SETTINGS, now_ms=s.now_ms + 10**12)
    assert session.offline_since_ms == s.now_ms + 10**12
    assert outcomes(commands) == {}


def test_what_cannot_be_read_is_not_restored() -> None:
    with pytest.raises(UnreadableRecord):
        restored(UNREADABLE, client_id=CLIENT, settings=SETTINGS, now_ms=NOW)
    held, commands = not_restored(UNREADABLE, "the next error", now_ms=NOW)
    assert held == msgspec.structs.replace(UNREADABLE, error="the next error")
    assert said(commands) == [Transition.QUARANTINED]
    with pytest.raises(UnreadableRecord):
        dropped(UNREADABLE, client_id=CLIENT, settings=SETTINGS, now_ms=NOW)


def test_a_drop_is_the_end_of_the_session() -> None:
    s = Scenario().connect(version=5, will=will()).submit("a").submit("b")
    held = held_of(s, events=(PubAckReceived(connection_id=1, packet_id=1),))
    commands = dropped(held, client_id=CLIENT, settings=SETTINGS, now_ms=s.now_ms + 5)
    assert outcomes(commands) == {"a": Outcome.DELIVERED, "b": Outcome.SESSION_ENDED}
    assert [forwarded.will for forwarded in of(commands, ForwardPublication)] == [True]
    assert said(commands).count(Transition.SESSION_ENDED) == 2, "the drop, and the end of the session"


def test_a_drop_of_messages_for_a_client_that_never_connected_ends_them() -> None:
    s = Scenario().submit("a")
    assert outcomes(dropped(held_of(s), client_id=CLIENT, settings=SETTINGS, now_ms=s.now_ms)) == {"a": Outcome.SESSION_ENDED}


def test_a_session_that_is_given_up_leaves_what_can_be_read() -> None:
    s = Scenario(max_inflight=2).connect(version=5).submit("a").submit("b", qos=2).submit("c")
    s.pubrec(2)
    held = held_of(s, events=(PUBLICATION, PubAckReceived(connection_id=1, packet_id=9)))
    commands = given_up(held, client_id=CLIENT, settings=SETTINGS, now_ms=NOW)
    assert outcomes(commands) == dict.fromkeys("abc", Outcome.QUARANTINED)
    assert [letter.message.message_id for letter in of(commands, DeadLetter)] == ["a", "c"], "b is the client's since its PUBREC"
    destinations = {receipt.message_id: receipt.destinations for receipt in receipts(commands)}
    assert destinations["b"] == ()
    assert [forwarded.publication_id for forwarded in of(commands, ForwardPublication)] == ["events-0-1"]
    assert ClearThrottle() in commands


@pytest.mark.parametrize("end", [dropped, given_up])
def test_a_routed_message_that_waits_for_its_connect_ends_with_a_drop(end: Any) -> None:
    s = Scenario(routing=True).connect().route("early", mark=1, entry=(2, 1))
    assert outcomes(end(held_of(s), client_id=CLIENT, settings=SETTINGS, now_ms=NOW)) == {"early": Outcome.QUARANTINED}


@pytest.mark.parametrize("end", [dropped, given_up])
def test_a_message_that_waits_for_its_time_ends_with_a_drop(end: Any) -> None:
    s = Scenario().submit("later", headers=(("deliver-at", b"%d" % (NOW + 9_000)),))
    assert outcomes(end(held_of(s), client_id=CLIENT, settings=SETTINGS, now_ms=NOW)) == {"later": Outcome.QUARANTINED}


def test_a_cancellation_is_a_row_of_the_ledger_with_its_position() -> None:
    held = held_of(Scenario().submit("a"))
    event = CancelRequested(message_id="a", position=Position(3, 7))
    held, commands = receive(held, event, client_id=CLIENT, now_ms=NOW, commands_partitions=1)
    (row,) = of(commands, RecordTransition)
    assert (row.transition, row.message_id) == (Transition.CANCEL_REFUSED, "a")
    assert row.detail == "the client is quarantined: its messages stay with its session"
    assert held.handled == ((3, 7),)


def test_of_what_cannot_be_read_only_the_drop_is_told() -> None:
    commands = given_up(UNREADABLE, client_id=CLIENT, settings=SETTINGS, now_ms=NOW)
    assert said(commands) == [Transition.SESSION_ENDED]
    assert commands[-2:] == (
        ClearThrottle(),
        ClearPresence(connection_id=0, since_ms=NOW, reason="dropped from quarantine"),
    )


def test_who_is_not_quarantined_is_told_so() -> None:
    assert "not quarantined" in not_quarantined(now_ms=NOW).detail


# --- rule 7: the fast path --------------------------------------------------------------------------------------------------


def fast_sent(name: str, offset: int, *, previous: int, connection_id: int = 1) -> FastSent:
    return FastSent(
        connection_id=connection_id,
        position=Position(0, offset),
        previous=previous,
        packet_id=40_000 + offset,
        qos=QoS.AT_LEAST_ONCE,
        message=message(name),
        sent_ms=NOW - 5,
    )


def read(name: str, offset: int) -> MessageSubmitted:
    return MessageSubmitted(message=message(name), position=Position(0, offset))


def fast() -> Scenario:
    """The path is open after offset 0; "adopted" was sent by it and is not read; "slow" was read, and is in the window."""
    s = Scenario().connect(capabilities=Capability.FAST_PATH).submit("first", at=Position(0, 0)).puback(1)
    return s.submit("slow", at=Position(0, 1)).fast_sent("adopted", 40_002, at=Position(0, 2), previous=1)


def after(held: Quarantine, *events: Any) -> tuple[Quarantine, dict[str, Outcome]]:
    told: dict[str, Outcome] = {}
    for event in events:
        held, commands = receive(held, event, client_id=CLIENT, now_ms=NOW, commands_partitions=1)
        assert told.keys().isdisjoint(outcomes(commands))
        told |= outcomes(commands)
    return held, told


def test_a_message_that_was_adopted_before_the_quarantine_has_one_outcome() -> None:
    held, told = after(held_of(fast()), read("adopted", 2), read("new", 3))
    assert told == {"new": Outcome.QUARANTINED}
    _, commands = restored(held, client_id=CLIENT, settings=SETTINGS, now_ms=NOW)
    assert outcomes(commands) == {}
    assert outcomes(dropped(held, client_id=CLIENT, settings=SETTINGS, now_ms=NOW)) == dict.fromkeys(
        ("adopted", "slow"), Outcome.SESSION_ENDED
    )


def test_what_a_gateway_sent_is_adopted_when_the_session_is_restored() -> None:
    sent = fast_sent("sent", 3, previous=2)
    held, told = after(held_of(fast()), sent, read("adopted", 2), read("sent", 3), fast_sent("slow", 1, previous=0))
    assert told == {}
    session, _ = restored(held, client_id=CLIENT, settings=SETTINGS, now_ms=NOW)
    assert [(e.packet_id, e.delivery.message.message_id) for e in session.outbound.window] == [
        (40_001, "slow"),
        (40_002, "adopted"),
        (40_003, "sent"),
    ]
    assert (session.outbound.positions.handled, session.outbound.positions.unread) == ({0: 3}, {})


def test_a_message_that_ended_in_quarantine_is_not_adopted() -> None:
    held, told = after(held_of(fast()), read("ended", 3), fast_sent("ended", 3, previous=2), fast_sent("sent", 4, previous=3))
    assert told == {"ended": Outcome.QUARANTINED}
    held, told = after(held, fast_sent("missing before it", 6, previous=5), read("refused", 7))
    assert told == {"refused": Outcome.QUARANTINED}
    session, commands = restored(held, client_id=CLIENT, settings=SETTINGS, now_ms=NOW)
    assert [entry.delivery.message.message_id for entry in session.outbound.window] == ["slow", "adopted", "sent"]
    assert outcomes(commands) == {}
    assert session.outbound.positions.latest == Position(0, 7)


def test_what_counts_for_no_session_is_not_kept() -> None:
    assert after(held_of(fast()), fast_sent("of an older connection", 3, previous=2, connection_id=0))[0].events == ()
    assert after(UNREADABLE, fast_sent("of a session that nobody can read", 3, previous=2))[0].events == ()


def test_a_message_without_a_position_changes_nothing_in_what_was_handled() -> None:
    held, told = after(held_of(fast()), MessageSubmitted(message=message("m")), MessageRefused(message=message("n"), detail=""))
    assert (held.handled, set(told)) == (None, {"m", "n"})
    held, _ = after(held, MessageRefused(message=message("o"), detail="", position=Position(0, 9)))
    assert held.handled == ((0, 9),)


def test_a_session_that_fails_at_its_end_gives_up_what_was_sent_too() -> None:
    held, _ = after(held_of(fast()), fast_sent("sent", 3, previous=2), fast_sent("slow", 1, previous=0))
    commands = given_up(held, client_id=CLIENT, settings=SETTINGS, now_ms=NOW)
    assert outcomes(commands) == dict.fromkeys(("sent", "adopted", "slow"), Outcome.QUARANTINED)
    assert {receipt.message_id: receipt.fast_path for receipt in receipts(commands)} == {
        "sent": True,
        "adopted": True,
        "slow": False,  # said by the session as it was stored
    }


def test_after_a_drop_a_message_with_an_outcome_is_not_new() -> None:
    held, _ = after(held_of(fast()), fast_sent("sent", 3, previous=2))
    session = session_after(held, client_id=CLIENT, settings=SETTINGS)
    assert not session.is_empty
    assert session.handle_all([read("adopted", 2), read("sent", 3)], now_ms=NOW) == ()
    assert session.is_empty
    assert outcomes(session.handle(read("new", 4), now_ms=NOW)) == {}
    assert len(session.outbound.queue) == 1


def test_the_payload_of_what_was_sent_counts_towards_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MAX_KEPT_BYTES", 70)
    with pytest.raises(UnreadableRecord, match="events are kept already"):
        after(held_of(fast()), fast_sent("long name", 3, previous=2))
