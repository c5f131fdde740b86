"""sinks.mqtt.connection with routing: the records of SUBSCRIBE, UNSUBSCRIBE and Clean Start, and what waits for them."""

import pytest

from sinks.mqtt.connection.append_queue import Append, AppendTopic
from sinks.mqtt.connection.phases import Phase
from sinks.mqtt.known_tables import NO_TABLES, KnownTables
from sinks.mqtt.settings import Limit
from sinks.routing.settings import RoutingSettings
from state.commands import AcceptConnection
from state.events import ClientConnected, Subscribed, Unsubscribed
from state.model import QoS, ReasonCode, Subscription
from state.records.subscriptions import SubscriptionList, decode_subscriptions
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, PINGRESP, Harness, connected
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, publish, text

ROUTING = RoutingSettings(enabled=True)
KEPT = Subscription(topic_filter="kept", qos=QoS(1))
KEPT_UNASKED = Subscription(topic_filter="kept", qos=QoS(1), retain_handling=2)
CONNACK = bytes.fromhex("20020000")
GRANTED = bytes.fromhex("9003000901")
"""SUBACK of MQTT 3.1.1 for one filter at QoS 1."""


def device(
    level: int = 4,
    *held: Subscription,
    list_id: tuple[int, int] = (77, 0),
    is_known: bool = True,
    tables: KnownTables = NO_TABLES,
    routing: RoutingSettings = ROUTING,
) -> Harness:
    """Accepts a device. held: its subscriptions. list_id: the list that has them. is_known: the engine tells what is in it."""
    accept = {
        "subscriptions": held if is_known else None,
        "topic_filters": tuple(one.topic_filter for one in held) if is_known else None,
        "list_connection_id": list_id[0],
        "list_version": list_id[1],
    }
    return connected(level, accept=accept, routing=routing, tables=tables)


def subscribe(*filters: str, options: int = 1) -> bytes:
    return packet(0x82, b"\x00\x09", *(text(one) + bytes((options,)) for one in filters))


def subscribe_v5(*filters: str, options: int = 1, properties: bytes = b"") -> bytes:
    asked = (text(one) + bytes((options,)) for one in filters)
    return packet(0x82, b"\x00\x09", bytes((len(properties),)), properties, *asked)


def unsubscribe(*filters: str) -> bytes:
    return packet(0xA2, b"\x00\x0a", *(text(one) for one in filters))


def lists(harness: Harness) -> list[SubscriptionList]:
    """Returns the lists; marks of sessions have a key of their own (test_claims.py)."""
    return [decode_subscriptions(append.value) for append in harness.others[AppendTopic.SUBSCRIPTIONS] if append.key is None]


def waiting(harness: Harness, topic: AppendTopic) -> Append:
    [append] = [append for append in harness.waiting if append.topic is topic]
    return append


@pytest.mark.parametrize("first", [AppendTopic.EVENTS, AppendTopic.SUBSCRIPTIONS])
def test_suback_follows_the_event_and_the_list(first: AppendTopic) -> None:
    harness = device()
    harness.confirming = False
    assert harness.send(subscribe("a")) == b""
    second = AppendTopic.EVENTS if first is AppendTopic.SUBSCRIPTIONS else AppendTopic.SUBSCRIPTIONS
    harness.confirm(waiting(harness, first))
    assert harness.output() == b""
    harness.confirm(waiting(harness, second))
    assert harness.output() == GRANTED
    [subscribed] = [event for event in harness.events if isinstance(event, Subscribed)]
    asked = Subscription(topic_filter="a", qos=QoS(1))
    assert subscribed == Subscribed(connection_id=77, subscriptions=(asked,), version=1)
    assert lists(harness) == [SubscriptionList(connection_id=77, version=1, subscriptions=(asked,), wanted=("a",))]


def test_a_publish_behind_a_subscribe_waits_for_the_list_alone() -> None:
    harness = device()
    harness.confirming = False
    harness.send(subscribe("a"), publish("a", b"p"), PINGREQ)
    assert harness.uplink == []
    assert not harness.wants_data
    harness.confirm(waiting(harness, AppendTopic.SUBSCRIPTIONS))
    assert len(harness.uplink) == 1
    assert harness.wants_data
    assert harness.output() == PINGRESP


def test_a_publish_behind_an_unsubscribe_waits_for_the_list_too() -> None:
    harness = device(4, KEPT)
    harness.confirming = False
    harness.send(unsubscribe("kept"), publish("a", b"p"))
    assert harness.uplink == []
    assert lists(harness) == [SubscriptionList(connection_id=77, version=1)]
    assert harness.last(Unsubscribed).version == 1
    harness.confirming = True
    assert harness.settle() == bytes.fromhex("b002000a")
    assert len(harness.uplink) == 1


def test_a_list_that_kafka_does_not_take_ends_the_connection() -> None:
    harness = device()
    harness.confirming = False
    harness.send(subscribe("a"))
    harness.confirm(waiting(harness, AppendTopic.EVENTS))
    harness.confirm(waiting(harness, AppendTopic.SUBSCRIPTIONS), OSError("told to fail"))
    assert (harness.output(), harness.connection.is_closed) == (b"", True)


def test_a_list_has_every_subscription_of_the_client() -> None:
    harness = device(4, KEPT, list_id=(50, 3))
    for change in (subscribe("a"), unsubscribe("kept"), subscribe("a", options=2)):
        harness.send(change)
    ids = [(one.connection_id, one.version) for one in lists(harness)]
    assert ids == [(77, 1), (77, 2), (77, 3)], "the list of connection 50 is another connection's"
    filters = [[(one.topic_filter, int(one.qos)) for one in listed.subscriptions] for listed in lists(harness)]
    assert filters == [[("kept", 1), ("a", 1)], [("a", 1)], [("a", 2)]]
    assert [event.version for event in harness.events if isinstance(event, Subscribed | Unsubscribed)] == [1, 2, 3]


def numbered(packet_id: int, first_byte: int, *body: bytes) -> bytes:
    return packet(first_byte, packet_id.to_bytes(2, "big"), *body)


def test_changes_that_come_while_a_list_is_unconfirmed_share_the_next_one() -> None:
    harness = device(4)
    harness.confirming = False
    changes = [numbered(number, 0x82, text(f"f/{number}"), b"\x01") for number in range(1, 101)]
    harness.send(changes[0])
    harness.send(*changes[1:], numbered(200, 0xA2, text("f/2")), publish("t", b"behind"))
    assert [one.version for one in lists(harness)] == [1]
    harness.confirming = True
    answers = harness.settle()
    assert [one.version for one in lists(harness)] == [1, 101]
    newest = lists(harness)[-1]
    assert [one.topic_filter for one in newest.subscriptions] == [f"f/{number}" for number in range(1, 101) if number != 2]
    assert newest.wanted == tuple(f"f/{number}" for number in range(2, 101))
    subacks = b"".join(b"\x90\x03" + number.to_bytes(2, "big") + b"\x01" for number in range(1, 101))
    assert answers == subacks + bytes.fromhex("b00200c8"), "in the order of the packets"
    versions = [event.version for event in harness.events if isinstance(event, Subscribed | Unsubscribed)]
    assert versions == list(range(1, 102))
    assert len(harness.uplink) == 1


def test_no_acknowledgement_leaves_before_the_list_that_has_its_change() -> None:
    """[MQTT-3.8.4-1] The events alone do not make a subscription that a matcher knows."""
    harness = device(4)
    harness.confirming = False
    harness.send(numbered(1, 0x82, text("a"), b"\x01"))
    harness.send(numbered(2, 0x82, text("b"), b"\x01"))
    for append in list(harness.waiting):
        if append.topic is AppendTopic.EVENTS:
            harness.confirm(append)
    assert harness.output() == b""
    harness.confirm(waiting(harness, AppendTopic.SUBSCRIPTIONS))
    assert harness.output() == bytes.fromhex("9003000101")
    harness.confirm(waiting(harness, AppendTopic.SUBSCRIPTIONS))
    assert harness.output() == bytes.fromhex("9003000201")


def test_a_ping_is_answered_while_lists_are_unconfirmed() -> None:
    harness = device(4)
    harness.confirming = False
    assert harness.send(subscribe("a"), subscribe("b"), PINGREQ) == PINGRESP


def test_what_comes_behind_a_change_waits_for_the_list_that_has_it() -> None:
    harness = device(4)
    harness.confirming = False
    harness.send(subscribe("a"))
    harness.send(subscribe("b"), publish("b", b"p"))
    for append in list(harness.waiting):
        harness.confirm(append)
    assert [one.version for one in lists(harness)] == [1, 2]
    assert harness.uplink == []
    harness.confirm(waiting(harness, AppendTopic.SUBSCRIPTIONS))
    assert len(harness.uplink) == 1


@pytest.mark.parametrize("end", ["disconnect", "lost"])
def test_a_connection_that_ends_writes_its_last_list(end: str) -> None:
    harness = device(4)
    harness.confirming = False
    harness.send(subscribe("a"))
    harness.send(subscribe("b"))
    if end == "lost":
        harness.close("over", ReasonCode.SERVER_SHUTTING_DOWN)
    else:
        harness.send(b"\xe0\x00")
        harness.feed("peer_closed")
        harness.confirming = True
        harness.settle()
    assert [one.version for one in lists(harness)] == [1, 2]


def test_what_changes_nothing_is_written_once_on_a_connection() -> None:
    """Kafka may have the event of the change before it and not the list, or the list and not the event."""
    harness = device(5, KEPT, list_id=(50, 3))
    for _ in range(2):
        harness.send(subscribe_v5("kept", options=0x21))
    assert lists(harness) == [SubscriptionList(connection_id=77, version=1, subscriptions=(KEPT_UNASKED,))]
    harness = device(4, KEPT, list_id=(50, 3))
    for _ in range(2):
        assert harness.send(unsubscribe("other")) == bytes.fromhex("b002000a")
    assert lists(harness) == [SubscriptionList(connection_id=77, version=1, subscriptions=(KEPT,))]


def test_the_numbers_of_lists_go_on_where_the_session_is() -> None:
    harness = device(list_id=(77, 4))
    harness.send(subscribe("a"))
    assert (lists(harness)[0].connection_id, lists(harness)[0].version) == (77, 5)


def test_retained_messages_are_wanted_by_retain_handling() -> None:
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.8.4-4]"""
    harness = device(5, KEPT)
    for options in (0x01, 0x11, 0x21):  # Retain Handling 0, 1, 2
        harness.send(subscribe_v5("kept", f"new-{options}", f"$share/g/{options}", options=options))
    assert [one.wanted for one in lists(harness)] == [("kept", "new-1"), ("new-17",), ()]


def test_a_subscribe_that_changes_nothing_makes_no_record() -> None:
    harness = device(5, KEPT, list_id=(77, 4))
    harness.send(subscribe_v5("kept", options=0x11))
    before = len(harness.events)
    assert harness.send(subscribe_v5("kept", options=0x11)) == bytes.fromhex("900400090001")
    assert harness.send(packet(0xA2, b"\x00\x0a\x00", text("other"))) == bytes.fromhex("b004000a0011")
    assert harness.send(subscribe_v5("a#")) == bytes.fromhex("90040009008f")
    assert len(harness.events) == before
    assert len(lists(harness)) == 1, "its options are others than those before"


def test_the_first_subscribe_of_a_connection_makes_a_list_in_any_case() -> None:
    """The gateway of the connection before may have failed between the event and the list."""
    held = Subscription(topic_filter="kept", qos=QoS(1), retain_handling=1)
    harness = device(5, held, list_id=(50, 3))
    harness.send(subscribe_v5("kept", options=0x11))
    assert lists(harness) == [SubscriptionList(connection_id=77, version=1, subscriptions=(held,))]
    harness.send(subscribe_v5("kept", options=0x11))
    assert len(lists(harness)) == 1


def test_a_subscribe_that_only_wants_retained_messages_is_recorded() -> None:
    harness = device(4, KEPT)
    harness.send(subscribe("kept"))
    assert lists(harness) == [SubscriptionList(connection_id=77, version=1, subscriptions=(KEPT,), wanted=("kept",))]


def test_an_identifier_is_of_each_filter_of_its_subscribe() -> None:
    harness = device(5, KEPT)
    assert harness.send(subscribe_v5("a", "b", properties=b"\x0b\x07")) == bytes.fromhex("90050009000101")
    assert {one.topic_filter: one.identifier for one in lists(harness)[0].subscriptions} == {"kept": None, "a": 7, "b": 7}
    assert [one.identifier for one in harness.last(Subscribed).subscriptions] == [7, 7]


def test_a_session_with_an_unknown_list_gets_no_subscription_more() -> None:
    harness = device(is_known=False)
    assert harness.send(subscribe("a")) == bytes.fromhex("9003000980")
    assert not any(isinstance(event, Subscribed) for event in harness.events)
    assert harness.send(unsubscribe("a")) == bytes.fromhex("b002000a")
    assert harness.last(Unsubscribed).version == 1, "the session's own filters count from now on"
    assert lists(harness) == []


def test_without_routing_there_is_no_list() -> None:
    harness = device(4, KEPT, routing=RoutingSettings(enabled=False))
    assert harness.send(subscribe("a", "$share/g/a")) == bytes.fromhex("900400090180")
    assert harness.last(Subscribed).version == 0
    harness.send(unsubscribe("kept"))
    assert harness.last(Unsubscribed).version == 0
    assert harness.others[AppendTopic.SUBSCRIPTIONS] == []


class Tables:
    """has: whether the client may have a list."""

    def __init__(self, *, has: bool = True, highest: tuple[int, int] = (0, 0)) -> None:
        self._has = has
        self._highest = highest

    knows_sessions = False

    def wills_settled(self, client_id: str) -> bool:
        return False

    def kept_ms(self, client_id: str) -> int | None:
        return None

    def has_list(self, client_id: str) -> bool:
        return self._has

    def is_highest(self, client_id: str, list_id: tuple[int, int]) -> bool:
        return self._highest <= list_id

    def retained_limit(self, topic: str, payload_bytes: int) -> Limit | None:
        return None


def clean(tables: KnownTables = NO_TABLES) -> Harness:
    harness = Harness(routing=ROUTING, tables=tables)
    harness.confirming = False
    harness.send(connect(flags=0x02))
    return harness


def test_connack_of_a_clean_start_follows_an_empty_list() -> None:
    """The list follows CONNECT: alone it would be above the list of a session that goes on."""
    harness = clean()
    assert lists(harness) == []
    harness.confirm(waiting(harness, AppendTopic.EVENTS))
    assert lists(harness) == [SubscriptionList(connection_id=77, version=0)]
    assert harness.output() == b""
    harness.confirming = True
    assert harness.settle() == CONNACK


def test_the_engines_answer_does_not_pass_the_empty_list() -> None:
    harness = clean(Tables())
    harness.confirm(waiting(harness, AppendTopic.EVENTS))
    harness.command(AcceptConnection, send_quota=32, max_awaiting_rel=100)
    harness.send(PINGREQ)
    assert (harness.output(), harness.connection.phase) == (b"", Phase.CONNECTED)
    harness.confirm(waiting(harness, AppendTopic.SUBSCRIPTIONS))
    assert harness.output() == CONNACK + PINGRESP


def test_a_client_without_a_list_gets_none_at_a_clean_start() -> None:
    harness = clean(Tables(has=False))
    assert lists(harness) == []
    harness.confirming = True
    assert harness.settle() == CONNACK


def test_a_kept_session_begins_with_the_list_that_it_has() -> None:
    harness = device(4, KEPT, list_id=(50, 3))
    assert lists(harness) == []
    harness.last(ClientConnected)


def test_a_lower_list_behind_our_own_is_followed_by_our_own() -> None:
    harness = device(4, KEPT, list_id=(50, 3), tables=Tables(highest=(50, 3)))
    harness.feed("repeat_list")
    assert lists(harness) == [SubscriptionList(connection_id=50, version=3, subscriptions=(KEPT,))]
    assert harness.counters.lists_repeated == 1
    assert harness.wants_data, "nothing of the device waits for a repetition"


def test_a_list_that_is_lower_than_anothers_is_not_repeated() -> None:
    """Else two connections of a client would answer each other for ever."""
    harness = device(4, KEPT, list_id=(50, 3), tables=Tables(highest=(78, 0)))
    harness.feed("repeat_list")
    unknown = device(4, KEPT)
    unknown.feed("repeat_list")
    closed = Harness(routing=ROUTING, tables=Tables())
    closed.feed("repeat_list")
    assert lists(harness) == lists(unknown) == lists(closed) == []
