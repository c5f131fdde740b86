"""protocol.md, section 4, QoS 2 publications of a device. QoS 0 and 1 never reach the session."""

import pytest

from state.commands import AcceptConnection, ForwardPublication, KnownPublication, RecordTransition, Transition
from state.inbound.awaiting_rel import MAX_REPEATED, content_hash
from state.model import PublishProperties, QoS
from state.transitions import InboundPhase
from tests.scenarios.scenario import START_MS, Scenario


def test_a_publication_is_handed_on_once_and_its_id_is_kept_until_pubrel() -> None:
    """[MQTT-4.3.3-8] [MQTT-4.3.3-11]"""
    s = Scenario().connect().publish(5, "a")
    assert s.uplink == ["a"]
    assert list(s.session.inbound.awaiting_rel.entries) == [5]
    s.pubrel(5)
    assert list(s.session.inbound.awaiting_rel.entries) == []
    assert s.session.next_deadline_ms() is None


def test_what_is_handed_on_is_what_was_published() -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-17] [MQTT-3.3.2-18]"""
    properties = PublishProperties(content_type="text/plain", user_properties=(("a", "b"),))
    s = Scenario().connect(version=5).publish(5, "a", retain=True, expiry_interval_s=60, properties=properties)
    assert s.sent(ForwardPublication) == [
        ForwardPublication(
            publication_id="events-0-1",
            topic="up",
            payload=b"a",
            qos=QoS.EXACTLY_ONCE,
            retain=True,
            expiry_interval_s=60,
            properties=properties,
        )
    ]


@pytest.mark.parametrize("dup", [False, True])
def test_the_same_id_before_pubrel_is_a_repetition_whatever_dup_says(dup: bool) -> None:
    """[MQTT-4.3.3-10]"""
    s = Scenario().connect().publish(5, "a").publish(5, "a", dup=dup)
    assert s.uplink == ["a"]
    assert s.ledger.count("publication_repeated") == 1
    s.pubrel(5)
    assert list(s.session.inbound.awaiting_rel.entries) == []


def test_other_content_without_dup_is_handed_on_before_pubrel_too() -> None:
    """The client uses the id too early. A PUBCOMP for content that nobody got would be worse."""
    s = Scenario().connect().publish(5, "a").publish(5, "b").publish(5, "b").publish(5, "a", dup=True)
    assert s.uplink == ["a", "b"]
    assert s.ledger.count("publication_repeated") == 2
    rows = [row for row in s.sent(RecordTransition) if row.transition is Transition.PUBLICATION_FORWARDED]
    assert [row.detail for row in rows] == ["", "its packet id awaited PUBREL of another publication"]
    s.pubrel(5)
    assert list(s.session.inbound.awaiting_rel.entries) == []


def test_other_content_under_an_id_waits_anew_for_pubrel() -> None:
    s = Scenario(max_awaiting_rel=2).connect(version=5).publish(5, "a").publish(6, "b").after(200).publish(5, "c").after(150)
    assert list(s.session.inbound.awaiting_rel.entries) == [5]
    assert s.uplink == ["a", "b", "c"]


def test_an_unseen_id_with_dup_is_a_new_publication_and_is_handed_on_once() -> None:
    """[MQTT-4.3.3-12] [MQTT-3.3.1-3]; brokers that trust DUP lose it."""
    s = Scenario().connect().publish(5, "a", dup=True).publish(5, "a", dup=True)
    assert s.uplink == ["a"]


def test_after_pubrel_the_same_id_is_a_new_publication_whatever_dup_says() -> None:
    """[MQTT-4.3.3-12]"""
    s = Scenario().connect().publish(5, "a").pubrel(5).publish(5, "b").pubrel(5).publish(5, "c", dup=True)
    assert s.uplink == ["a", "b", "c"]


def test_a_pubrel_is_recorded_and_leaves_nothing_behind() -> None:
    s = Scenario().connect().publish(5, "a").pubrel(5)
    assert s.ledger[-1] == "publication_released"
    assert dict(s.session.inbound.awaiting_rel.tombstones) == {}


def test_an_unknown_pubrel_is_no_event() -> None:
    s = Scenario().connect().pubrel(9)
    assert s.last == ()
    assert s.session.inbound.awaiting_rel.phase(9) is InboundPhase.ABSENT


def test_publications_are_handed_on_in_the_order_of_arrival() -> None:
    """[MQTT-4.6.0-5]"""
    s = Scenario().connect()
    with s.micro_batch():
        for packet_id in (9, 3, 7):
            s.publish(packet_id, str(packet_id))
        s.pubrel(3)
        s.publish(3, "3 again")
    assert s.uplink == ["9", "3", "7", "3 again"]


# --- across connections -----------------------------------------------------------------------------------------------------


def test_a_repetition_on_the_next_connection_is_not_handed_on_again() -> None:
    """[MQTT-4.4.0-1] A gateway died between log and answer; the device resends."""
    s = Scenario().connect().publish(5, "a").lose_connection().connect()
    assert s.sent(AcceptConnection)[-1].awaiting_rel == (5,)
    s.publish(5, "a", dup=True)
    assert s.uplink == ["a"]
    s.pubrel(5)
    s.lose_connection().connect()
    assert s.sent(AcceptConnection)[-1].awaiting_rel == ()


def test_a_publication_of_an_older_connection_of_the_same_session_counts() -> None:
    """The publication is in the log, so the device may have its PUBREC already."""
    s = Scenario().connect().connect()
    s.publish(5, "a", connection_id=1).publish(5, "a", dup=True)
    assert s.uplink == ["a"]
    s.pubrel(5, connection_id=1)
    assert list(s.session.inbound.awaiting_rel.entries) == []


@pytest.mark.promise("handed-on-by-frozen-gateway")
def test_a_publication_overtaken_by_its_repetition_is_not_handed_on() -> None:
    """[MQTT-4.3.3-10] A gateway froze with it in a socket, and the device has finished it elsewhere meanwhile."""
    s = Scenario().connect().connect().publish(5, "a", dup=True).pubrel(5).publish(5, "a", connection_id=1)
    assert s.uplink == ["a"]
    assert s.ledger[-1] == "publication_repeated"
    assert s.session.inbound.awaiting_rel.phase(5) is InboundPhase.ABSENT, "no PUBREL will follow"
    s.publish(5, "b").publish(5, "a", connection_id=1)
    assert s.uplink == ["a", "b"]
    assert list(s.session.inbound.awaiting_rel.entries) == [5]
    s.publish(5, "b", dup=True).pubrel(5).publish(5, "a", connection_id=1)
    assert s.uplink == ["a", "b"], "also after another repetition under its id"


def test_an_overtaken_publication_leaves_a_tombstone_as_it_is() -> None:
    """The next repetition is a late one, and PUBREL follows that."""
    s = Scenario(await_rel_timeout_ms=60_000).connect().publish(5, "a").after(59).connect().publish(5, "a", dup=True).after(1)
    s.publish(5, "a", connection_id=1)
    assert s.uplink == ["a"]
    assert s.session.inbound.awaiting_rel.phase(5) is InboundPhase.TOMBSTONE
    s.publish(5, "a", dup=True)
    assert s.uplink == ["a"]
    assert list(s.session.inbound.awaiting_rel.entries) == [5]


def test_what_was_not_repeated_is_new_also_on_an_older_connection() -> None:
    s = Scenario().connect().connect().publish(5, "a", dup=True).pubrel(5).publish(6, "a", connection_id=1)
    s.publish(5, "b", connection_id=1)
    assert s.uplink == ["a", "a", "b"]


def test_repetitions_are_remembered_for_the_await_rel_timeout() -> None:
    s = Scenario(await_rel_timeout_ms=60_000).connect().connect().publish(5, "a", dup=True).pubrel(5)
    s.after(30).publish(6, "b", dup=True).pubrel(6)

    def repeated() -> list[int]:
        return [packet_id for packet_id, _ in s.session.inbound.awaiting_rel.repeated]

    assert repeated() == [5, 6]
    assert s.session.next_deadline_ms() is None, "nobody is called to forget"
    s.after(30).subscribe("x", 0)
    assert repeated() == [6]
    s.connect(clean_start=True)
    assert repeated() == []


def test_only_the_last_repetitions_are_remembered() -> None:
    s = Scenario(max_awaiting_rel=0).connect().publish(1, "a", dup=True)
    with s.micro_batch():
        for packet_id in range(2, MAX_REPEATED + 2):
            s.publish(packet_id, "x", dup=True)
        s.publish(2, "x", dup=True)
    assert [packet_id for packet_id, _ in s.session.inbound.awaiting_rel.repeated] == [*range(3, MAX_REPEATED + 2), 2]


def test_a_publication_of_an_ended_session_means_nothing_to_the_next() -> None:
    s = Scenario().connect().connect(clean_start=True)
    s.publish(5, "old", connection_id=1).publish(5, "new")
    assert s.uplink == ["old", "new"]
    s.pubrel(5, connection_id=1)
    assert list(s.session.inbound.awaiting_rel.entries) == [5]


def test_a_publication_after_the_end_of_its_session_leaves_no_id() -> None:
    """The next session would take the first publication under that id for a repetition, and lose it."""
    s = Scenario().connect(expiry_s=0).submit("x", qos=2).puback(1)  # wrong kind: the connection and its session end
    s.publish(5, "logged meanwhile", connection_id=1)
    assert s.session.is_empty
    s.connect(expiry_s=0)
    assert s.sent(AcceptConnection)[-1].awaiting_rel == ()
    s.publish(5, "new")
    assert s.uplink == ["logged meanwhile", "new"]


def test_a_clean_start_forgets_ids_and_tombstones() -> None:
    """[MQTT-3.1.2-4]"""
    s = Scenario().connect().publish(5, "a").publish(6, "b").after(300).publish(7, "c")
    s.connect(clean_start=True)
    awaiting = s.session.inbound.awaiting_rel
    assert (dict(awaiting.entries), dict(awaiting.tombstones)) == ({}, {})
    s.publish(5, "a", dup=True).publish(7, "c", dup=True)
    assert s.uplink == ["a", "b", "c", "a", "c"]


# --- handed on by the gateway -----------------------------------------------------------------------------------------------


def known(s: Scenario) -> tuple[KnownPublication, ...] | None:
    """Returns what the newest gateway was told."""
    told: tuple[KnownPublication, ...] | None = s.sent(AcceptConnection)[-1].known_publications
    return told


def test_what_the_gateway_hands_on_the_session_only_keeps() -> None:
    s = Scenario(routing=True).connect().accept(5, "a")
    assert s.uplink == []
    assert list(s.session.inbound.awaiting_rel.entries) == [5]
    assert s.ledger[-1] == "publication_forwarded"
    s.pubrel(5)
    assert s.ledger[-1] == "publication_released"
    assert s.session.inbound.awaiting_rel.hand_overs == {}
    assert s.session.next_deadline_ms() is None


def test_a_gateway_is_told_which_publications_are_no_new_ones() -> None:
    s = Scenario(routing=True).connect().publish(4, "x").accept(5, "a", since_ms=START_MS).after(300).accept(6, "b").connect()
    of_a, of_b = (content_hash("up", payload) for payload in (b"a", b"b"))
    assert known(s) == (
        KnownPublication(packet_id=6, content=of_b, publication_id="d:1:3", since_ms=s.now_ms),
        KnownPublication(packet_id=4, content=content_hash("up", b"x"), is_abandoned=True),
        KnownPublication(packet_id=5, content=of_a, publication_id="d:1:2", since_ms=START_MS, is_abandoned=True),
    )
    s.accept(5, "a", dup=True, repeats="d:1:2", since_ms=START_MS).accept(6, "b", dup=True, repeats="d:1:3").connect()
    assert [(each.packet_id, each.publication_id) for each in known(s) or ()] == [(6, "d:1:3"), (5, "d:1:2"), (4, "")]
    assert s.uplink == ["x"]
    assert s.ledger.count("publication_forwarded") == 3
    assert s.ledger.count("publication_repeated") == 2


def test_without_routing_a_gateway_is_told_of_no_publications() -> None:
    assert known(Scenario().connect().publish(5, "a").connect()) == ()


def test_too_many_publications_are_not_told_to_a_gateway() -> None:
    s = Scenario(routing=True, max_awaiting_rel=0).connect()
    with s.micro_batch():
        for packet_id in range(1, 1_400):
            s.accept(packet_id, "x")
    s.connect()
    assert known(s) is None


def test_other_content_that_a_gateway_hands_on_replaces_the_earlier() -> None:
    s = Scenario(routing=True).connect().accept(5, "a").accept(5, "b").connect()
    assert [(each.content, each.publication_id) for each in known(s) or ()] == [(content_hash("up", b"b"), "d:1:2")]
    details = [row.detail for row in s.sent(RecordTransition) if row.transition is Transition.PUBLICATION_FORWARDED]
    assert details == ["", "its packet id awaited PUBREL of another publication"]


def test_an_accepted_publication_behind_a_later_connect_is_ignored() -> None:
    """Its gateway does not hand it on, and has not answered it: the device repeats it on the later connection."""
    s = Scenario(routing=True).connect().connect().accept(5, "a", connection_id=1)
    assert dict(s.session.inbound.awaiting_rel.entries) == {}
    s.connect(clean_start=True).accept(5, "a", connection_id=2)
    assert dict(s.session.inbound.awaiting_rel.entries) == {}


def test_a_session_that_has_ended_ignores_what_its_gateway_hands_on() -> None:
    s = Scenario(routing=True).connect(expiry_s=0).lose_connection().accept(5, "a")
    assert s.session.is_empty
    assert s.uplink == []


def test_the_session_hands_on_what_a_dead_gateway_may_have_handed_on() -> None:
    s = Scenario(routing=True).connect().accept(5, "a", since_ms=START_MS).after(1).connect()
    s.publish(5, "a", dup=True).publish(5, "a", dup=True)
    [forwarded] = s.sent(ForwardPublication)
    assert (forwarded.publication_id, forwarded.payload, forwarded.may_be_copy_since_ms) == ("d:1:1", b"a", START_MS)
    s.connect()
    assert [(each.packet_id, each.publication_id) for each in known(s) or ()] == [(5, "")]


def test_a_repetition_on_the_connection_of_its_gateway_is_not_handed_on() -> None:
    """Its gateway answers it behind the first PUBLISH."""
    s = Scenario(routing=True).connect().accept(5, "a").publish(5, "a", dup=True)
    assert s.uplink == []


def test_other_content_with_dup_is_not_handed_on_as_the_publication() -> None:
    s = Scenario(routing=True).connect().accept(5, "a").connect().publish(5, "b", dup=True)
    assert s.uplink == []


def test_a_late_repetition_of_what_a_dead_gateway_had_is_handed_on() -> None:
    s = Scenario(routing=True).connect().accept(5, "a", since_ms=START_MS).after(300).connect().publish(5, "a", dup=True)
    assert [(one.publication_id, one.may_be_copy_since_ms) for one in s.sent(ForwardPublication)] == [("d:1:1", START_MS)]


def test_a_repetition_whose_id_is_free_again_is_kept() -> None:
    s = Scenario(routing=True).connect().accept(5, "a", repeats="d:0:1", since_ms=START_MS)
    assert list(s.session.inbound.awaiting_rel.entries) == [5]


def test_more_accepted_publications_than_receive_maximum_close_with_0x93() -> None:
    """[MQTT-3.3.4-7]"""
    s = Scenario(routing=True, max_awaiting_rel=1).connect(version=5).accept(1, "a")
    s.sees()
    assert s.accept(1, "a", repeats="d:1:1").sees() == []
    assert s.accept(2, "b").sees() == ["CLOSE 0x93"]


def test_a_clean_start_forgets_what_gateways_were_to_hand_on() -> None:
    s = Scenario(routing=True).connect().accept(5, "a").after(300).accept(6, "b").connect(clean_start=True)
    assert s.session.inbound.awaiting_rel.hand_overs == {}
    assert known(s) == ()


# --- a full set -------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("max-awaiting-rel")
def test_a_publication_above_the_receive_maximum_closes_with_0x93() -> None:
    """[MQTT-3.3.4-7]; it is in the log and may be answered, so it is handed on all the same."""
    s = Scenario(max_awaiting_rel=2).connect(version=5)
    assert s.sent(AcceptConnection)[0].max_awaiting_rel == 2
    s.publish(1, "a").publish(2, "b")
    s.sees()
    s.publish(3, "c")
    assert s.sees() == ["CLOSE 0x93"]
    assert s.uplink == ["a", "b", "c"]


def test_a_client_of_mqtt_3_1_1_has_no_receive_maximum_to_exceed() -> None:
    """The client's PUBRELs may come after any number of PUBLISHes, so every packet id may await its PUBREL."""
    s = Scenario(max_awaiting_rel=2).connect(version=4)
    s.sees()
    with s.micro_batch():
        for packet_id in range(1, 101):
            s.publish(packet_id, str(packet_id))
    assert s.sees() == []
    s.lose_connection().connect(version=4)
    assert s.sent(AcceptConnection)[-1].awaiting_rel == tuple(range(1, 101))
    s.sees()
    s.publish(100, "100", dup=True).pubrel(*range(1, 101))
    assert s.sees() == []
    assert s.uplink == [str(packet_id) for packet_id in range(1, 101)]
    assert s.session.next_deadline_ms() is None


def test_a_repetition_while_the_set_is_full_is_not_an_overflow() -> None:
    s = Scenario(max_awaiting_rel=2).connect(version=5).publish(1, "a").publish(2, "b")
    s.sees()
    s.publish(1, "a", dup=True).publish(2, "b")
    assert s.sees() == []
    assert s.uplink == ["a", "b"]


def test_after_an_overflow_repetitions_are_no_overflows() -> None:
    """Otherwise a device that obeys the standard could never recover: it has to resend before it can release."""
    s = Scenario(max_awaiting_rel=1).connect(version=5).publish(1, "a").publish(2, "b").connect(version=5)
    s.sees()
    s.publish(1, "a", dup=True).publish(2, "b", dup=True).pubrel(1, 2)
    assert s.sees() == []
    assert s.uplink == ["a", "b"]


def test_an_overflow_of_an_older_connection_does_not_close_the_present_one() -> None:
    s = Scenario(max_awaiting_rel=1).connect(version=5).publish(1, "a").connect(version=5)
    s.sees()
    s.publish(2, "b", connection_id=1)
    assert s.sees() == []
    assert s.uplink == ["a", "b"]


def test_a_maximum_of_zero_is_no_limit() -> None:
    s = Scenario(max_awaiting_rel=0).connect(version=5)
    s.sees()
    with s.micro_batch():
        for packet_id in range(1, 100):
            s.publish(packet_id, "x")
    assert s.sees() == []


# --- await_rel_timeout ------------------------------------------------------------------------------------------------------


def test_an_unreleased_id_is_discarded_and_the_gateway_told() -> None:
    s = Scenario(await_rel_timeout_ms=60_000).connect().publish(5, "a").after(10).publish(6, "b")
    s.sees()
    assert s.session.next_deadline_ms() == s.now_ms + 50_000
    assert s.after(50).sees() == ["FORGET (5,)"]
    assert s.after(10).sees() == ["FORGET (6,)"]
    assert s.ledger.count("publication_abandoned") == 2


def test_an_id_times_out_while_the_client_is_offline() -> None:
    s = Scenario(await_rel_timeout_ms=60_000).connect().publish(5, "a").lose_connection()
    s.after(60).connect()
    assert s.sent(AcceptConnection)[-1].awaiting_rel == ()


def test_a_repetition_does_not_restart_the_timeout() -> None:
    s = Scenario(await_rel_timeout_ms=60_000).connect().publish(5, "a").after(30).publish(5, "a")
    s.sees()
    assert s.after(30).sees() == ["FORGET (5,)"]


def test_a_tombstone_recognises_a_late_repetition_and_the_exchange_goes_on() -> None:
    s = Scenario().connect().publish(5, "a").after(300).publish(5, "a", dup=True)
    assert s.uplink == ["a"]
    assert list(s.session.inbound.awaiting_rel.entries) == [5]
    s.pubrel(5).publish(5, "a", dup=True)
    assert s.uplink == ["a", "a"]  # released: the tombstone is gone


def test_a_tombstone_does_not_swallow_a_new_publication_under_its_id() -> None:
    s = Scenario().connect().publish(5, "a").after(300).publish(5, "b", dup=True)
    assert s.uplink == ["a", "b"]
    assert s.publish(5, "b", dup=True).uplink == ["a", "b"]  # it is in the set instead of the tombstone
    assert dict(s.session.inbound.awaiting_rel.tombstones) == {}


def test_a_tombstone_does_not_swallow_the_same_content_published_anew() -> None:
    """A device that restarts its ids may well say the same thing again: DUP tells the two apart here."""
    s = Scenario().connect().publish(5, "a").after(300).publish(5, "a", dup=False)
    assert s.uplink == ["a", "a"]


def test_after_a_late_pubrel_the_same_content_is_a_new_publication() -> None:
    """[MQTT-4.3.3-12] A client that has sent PUBREL does not repeat the publication: DUP=1 says only that the first try of the
    new one was lost."""
    s = Scenario().connect().publish(5, "a").after(300).pubrel(5)
    assert s.ledger[-1] == "publication_released"
    assert dict(s.session.inbound.awaiting_rel.tombstones) == {}
    assert s.publish(5, "a", dup=True).uplink == ["a", "a"]


def test_a_late_repetition_is_recognised_among_many_abandoned() -> None:
    """There are as many tombstones as may await PUBREL, at most one for each packet id."""
    s = Scenario().connect()
    with s.micro_batch():
        for packet_id in range(1, 101):
            s.publish(packet_id, "x")
    s.lose_connection().after(300).connect()
    assert len(s.session.inbound.awaiting_rel.tombstones) == 100
    with s.micro_batch():
        for packet_id in range(1, 101):
            s.publish(packet_id, "x", dup=True)
    assert s.uplink == ["x"] * 100
    assert dict(s.session.inbound.awaiting_rel.tombstones) == {}
