"""sinks.mqtt.connection with routing: PUBLISH with RETAIN, wills with Will Retain, and topics that begin with `$`."""

import pytest

from sinks.mqtt.connection.append_queue import Append, AppendTopic
from sinks.mqtt.connection.phases import CloseReason
from sinks.mqtt.known_tables import NO_TABLES, KnownTables
from sinks.mqtt.settings import Limit
from sinks.routing.settings import RoutingSettings
from state.events import ClientConnected, PublishReceived
from state.model import ReasonCode
from tests.unit.sinks.mqtt.connection.harness import Harness, ack, connected
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

ROUTING = RoutingSettings(enabled=True)
RETAIN, DUP = 0x01, 0x08
ANSWERS = {0: b"", 1: ack(0x40, 5), 2: ack(0x50, 5)}


def device(level: int = 5, *, tables: KnownTables = NO_TABLES, routing: RoutingSettings = ROUTING) -> Harness:
    return connected(level, routing=routing, tables=tables, accept={"subscriptions": (), "topic_filters": ()})


def retained(topic: str = "t", payload: bytes = b"p", *, qos: int = 1, v5: bytes | None = b"", dup: bool = False) -> bytes:
    first_byte = 0x30 | RETAIN | qos << 1 | (DUP if dup else 0)
    return publish(topic, payload, first_byte=first_byte, packet_id=5 if qos else None, v5=v5)


def kept(harness: Harness) -> list[Append]:
    return harness.others[AppendTopic.RETAINED]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.promise("retained")
def test_a_retained_publication_is_answered_when_both_records_are_there(qos: int) -> None:
    """[MQTT-3.3.1-5] It is handed on behind what is retained, by which a SUBSCRIBE in between brings it once."""
    harness = device()
    harness.confirming = False
    harness.send(retained(qos=qos))
    [record] = kept(harness)
    assert harness.waiting == [record]
    assert (record.key, record.value, dict(record.headers or ())["mqtt-retain"]) == (b"t", b"p", b"true")
    harness.confirm(record)
    assert [append.topic for append in harness.waiting] == [AppendTopic.UPLINK]
    assert harness.output() == b""
    harness.confirming = True
    assert harness.settle() == ANSWERS[qos]


def test_publications_keep_their_order_behind_one_that_is_retained_first() -> None:
    """Several are retained at a time. What is no publication does not wait for them."""
    harness = device()
    harness.confirming = False
    first = publish("t", b"1", first_byte=0x33, packet_id=1, v5=b"")
    second = publish("t", b"2", first_byte=0x31, v5=b"")
    plain = publish("t", b"3", first_byte=0x32, packet_id=3, v5=b"")
    assert harness.send(first, second, plain, bytes.fromhex("c000")) == bytes.fromhex("d000")
    assert [append.value for append in harness.waiting] == [b"1", b"2"]
    harness.confirm(kept(harness)[1])
    assert [append.value for append in harness.waiting] == [b"1"]
    harness.confirm(kept(harness)[0])
    assert [append.value for append in harness.uplink] == [b"1", b"2", b"3"]
    harness.confirming = True
    assert harness.settle() == ack(0x40, 1) + ack(0x40, 3)


@pytest.mark.parametrize("qos", [0, 1])
def test_what_is_retained_is_handed_on_though_the_device_has_gone(qos: int) -> None:
    harness = device()
    harness.confirming = False
    harness.send(retained(qos=qos), publish("t", b"later", first_byte=0x30, v5=b""))
    harness.feed("peer_closed")
    harness.confirming = True
    harness.settle()
    assert [append.value for append in harness.uplink] == [b"p", b"later"]


def test_what_kafka_does_not_retain_is_not_handed_on_and_costs_only_itself() -> None:
    harness = device()
    harness.confirming = False
    harness.send(retained(qos=0), publish("t", b"later", first_byte=0x32, packet_id=6, v5=b""))
    harness.confirm(kept(harness)[0], OSError("told to fail"))
    harness.confirming = True
    harness.settle()
    assert [append.value for append in harness.uplink] == [b"later"]
    assert harness.connection.is_closed


def test_at_qos_2_the_session_hears_of_what_is_retained_already() -> None:
    """Else a repetition after a crash, which is not retained once more, would be answered and retained nowhere."""
    harness = device()
    harness.confirming = False
    harness.send(retained(qos=2), publish("t", b"later", first_byte=0x32, packet_id=6, v5=b""))
    [record] = kept(harness)
    assert harness.waiting == [record], "what comes next waits, too"
    harness.confirm(record)
    assert [append.topic for append in harness.waiting] == [AppendTopic.EVENTS, AppendTopic.UPLINK]
    assert harness.output() == b""
    harness.confirming = True
    assert harness.settle() == ANSWERS[2] + ack(0x40, 6)


def test_at_qos_2_nothing_follows_the_end_of_the_connection() -> None:
    """The session would not take it, so it must not be answered: the device sends it again."""
    harness = device()
    harness.confirming = False
    harness.send(retained(qos=2))
    harness.feed("close_gracefully", CloseReason("stops", "gateway", ReasonCode.SERVER_SHUTTING_DOWN), 0)
    harness.confirming = True
    assert harness.settle() == bytes.fromhex("e0018b")
    assert not any(isinstance(event, PublishReceived) for event in harness.events)


@pytest.mark.parametrize(("level", "answer"), [(4, ""), (5, "5003000597")])
def test_at_qos_2_what_kafka_does_not_retain_is_refused(level: int, answer: str) -> None:
    harness = device(level)
    harness.confirming = False
    harness.send(retained(qos=2, v5=b"" if level == 5 else None))
    harness.confirm(kept(harness)[0], OSError("told to fail"), too_large=True)
    assert harness.output() == bytes.fromhex(answer)
    assert not any(isinstance(event, PublishReceived) for event in harness.events)
    assert harness.connection.is_closed is (level == 4)


def test_both_records_have_the_same_headers() -> None:
    harness = device()
    harness.send(retained(v5=b"\x02\x00\x00\x00\x09" + b"\x26" + text("k") + text("v")))
    [append], [record] = harness.uplink, kept(harness)
    assert record.headers == append.headers
    assert {"inflight-id", "message-expiry", "user-k"} <= dict(record.headers or ()).keys()


def test_a_repetition_of_qos_2_is_not_retained_once_more() -> None:
    harness = device()
    harness.send(retained(qos=2))
    harness.send(retained(payload=b"later", qos=1))
    assert harness.send(retained(qos=2, dup=True)) == ANSWERS[2]
    assert [append.value for append in kept(harness)] == [b"p", b"later"]
    assert len([event for event in harness.events if isinstance(event, PublishReceived)]) == 2


def test_other_content_under_an_id_that_awaits_pubrel_is_retained() -> None:
    """The session hands it on, so later subscribers get it too."""
    harness = device()
    harness.send(retained(qos=2))
    assert harness.send(retained(payload=b"other", qos=2)) == ANSWERS[2]
    assert harness.send(retained(payload=b"other", qos=2)) == ANSWERS[2]
    assert [append.value for append in kept(harness)] == [b"p", b"other"]


def test_a_publication_without_retain_is_not_kept() -> None:
    """[MQTT-3.3.1-8]"""
    harness = device()
    assert harness.send(publish("t", b"p", first_byte=0x32, packet_id=5, v5=b"")) == ANSWERS[1]
    assert kept(harness) == []


class Full:
    knows_sessions = False

    def wills_settled(self, client_id: str) -> bool:
        return False

    def kept_ms(self, client_id: str) -> int | None:
        return None

    def has_list(self, client_id: str) -> bool:
        return True

    def is_highest(self, client_id: str, list_id: tuple[int, int]) -> bool:
        return False

    def retained_limit(self, topic: str, payload_bytes: int) -> Limit | None:
        return Limit.RETAINED_MESSAGES


def test_beyond_the_limit_a_retained_publication_is_refused() -> None:
    harness = device(tables=Full())
    assert harness.send(retained()) == bytes.fromhex("4003000597")
    assert harness.send(retained(qos=2)) == bytes.fromhex("5003000597")
    assert harness.send(publish("t", b"p", first_byte=0x34, packet_id=5, v5=b"")) == ANSWERS[2], "the id is free"
    assert (harness.uplink, kept(harness)) == ([], [])
    assert harness.counters.limits_reached == {Limit.RETAINED_MESSAGES: 2}


def test_beyond_the_limit_qos_0_is_forwarded_and_not_kept() -> None:
    harness = device(tables=Full())
    harness.send(retained(qos=0))
    assert (len(harness.uplink), len(kept(harness))) == (1, 0)
    assert harness.counters.limits_reached == {Limit.RETAINED_MESSAGES: 1}


def test_beyond_the_limit_mqtt_3_1_1_is_closed_without_an_answer() -> None:
    """Its only answer would say that the message is retained."""
    harness = device(4, tables=Full())
    assert harness.send(retained(v5=None)) == b""
    assert (harness.connection.is_closed, kept(harness)) == (True, [])


def test_an_empty_payload_is_never_beyond_the_limit() -> None:
    """[MQTT-3.3.1-6]"""
    harness = device(tables=Full())
    assert harness.send(retained(payload=b"")) == ANSWERS[1]
    assert (len(harness.uplink), [append.value for append in kept(harness)]) == (1, [b""])


@pytest.mark.parametrize("too_large", [(0,), (1,), (0, 1)])
def test_a_retained_publication_that_kafka_refuses_as_too_large(too_large: tuple[int, ...]) -> None:
    harness = device()
    harness.confirming = False
    harness.send(retained())
    for number in range(2):
        [append] = harness.waiting
        if number in too_large:
            harness.confirm(append, OSError("told to fail"), too_large=True)
        else:
            harness.confirm(append)
    assert harness.output() == bytes.fromhex("4003000597")
    assert not harness.connection.is_closed


def test_with_routing_connack_leaves_nothing_out() -> None:
    """Retain Available, Subscription Identifiers Available and Shared Subscription Available are 1 without their property."""

    def connack(routing: RoutingSettings) -> bytes:
        return Harness(routing=routing).send(connect(level=5, flags=0x02))

    assert connack(RoutingSettings(enabled=False)) == bytes.fromhex("2014000011 210064 220010 2500 2700080000 2900 2a00")
    assert connack(ROUTING) == bytes.fromhex("200e00000b 210064 220010 2700080000")


def test_without_routing_nothing_is_retained() -> None:
    harness = device(routing=RoutingSettings(enabled=False))
    assert harness.send(retained()) == bytes.fromhex("e0019a")
    old = device(4, routing=RoutingSettings(enabled=False))
    assert old.send(retained(v5=None)) == ANSWERS[1]
    assert (len(old.uplink), kept(old)) == (1, [])


@pytest.mark.parametrize(("level", "refused"), [(4, ""), (5, "87")])
def test_a_topic_of_the_server_is_refused_and_the_connection_stays(level: int, refused: str) -> None:
    harness = device(level)
    v5 = b"" if level == 5 else None
    for first_byte, answer in ((0x30, ""), (0x32, "40"), (0x34, "50")):
        data = publish("$SYS/x", b"p", first_byte=first_byte, packet_id=5 if answer else None, v5=v5)
        expected = f"{answer}{2 + len(refused) // 2:02}0005{refused}" if answer else ""
        assert harness.send(data) == bytes.fromhex(expected)
    assert harness.uplink == []
    assert harness.counters.not_authorized == {"publish": 3}
    assert not harness.connection.is_closed


@pytest.mark.parametrize(("level", "answer"), [(4, "20020005"), (5, "2003008700")])
def test_a_will_for_a_topic_of_the_server_is_refused(level: int, answer: str) -> None:
    harness = Harness(routing=ROUTING)
    will = (b"\x00" if level == 5 else b"") + text("$SYS/x") + text("gone")
    assert harness.send(connect(level=level, flags=0x04, payload=text("c1") + will)) == bytes.fromhex(answer)


@pytest.mark.parametrize(("routing", "is_refused"), [(ROUTING, False), (RoutingSettings(enabled=False), True)])
def test_a_will_with_will_retain_needs_routing(routing: RoutingSettings, is_refused: bool) -> None:
    harness = Harness(routing=routing)
    answer = harness.send(connect(level=5, flags=0x24, payload=text("c1") + b"\x00" + text("w") + text("gone")))
    assert (answer == bytes.fromhex("2003009a00")) is is_refused
    wills = [event.will.retain for event in harness.events if isinstance(event, ClientConnected) and event.will]
    assert wills == ([] if is_refused else [True])
