"""sinks.mqtt.gateway with routing, on a log that keeps what it is given."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sinks.fast_path.offering import Offers
from sinks.kafka.append import Confirmation
from sinks.mqtt.access.authenticator import auth_policy_of
from sinks.mqtt.connection.append_queue import Append, AppendTopic
from sinks.mqtt.gateway import Gateway
from sinks.mqtt.known_tables import RoutingView
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from sinks.routing.retained_table import RetainedTable
from sinks.routing.session_table import SessionTable
from sinks.routing.settings import RoutingSettings
from sinks.routing.subscription_table import SubscriptionTable
from state.commands import AcceptConnection, CommandBatch, OfferPublish, OpenFastPath
from state.events import ClientConnected, FastSent
from state.model import Position
from state.records.commands import encode_command_batch
from state.records.events import decode_events, encode_puback
from state.records.session_marks import SessionMark
from state.records.subscriptions import SubscriptionList, decode_subscriptions
from tests.support.waiting import until
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, publish, text
from tests.unit.sinks.mqtt.test_device_socket import Transport

SETTINGS = GatewaySettings(
    uplink_topic="x.uplink", routing=RoutingSettings(enabled=True, subscriptions_topic="x.lists", retained_topic="x.retained")
)

OTHERS = (SETTINGS.leases_topic, SETTINGS.fast_path.wake_ups_topic, "x.lists")


class Site:
    """A gateway with its tables, and one device. Every record is confirmed at once, but for those without a value.

    looked_up: those who wait for the tables.
    """

    def __init__(self, settings: GatewaySettings = SETTINGS, *, has_brokers_time: Callable[[], bool] = lambda: False) -> None:
        self.waiting: set[bytes] = set()
        """Keys of publications that wait."""
        self.looked_up: list[Callable[[bool], None]] = []
        self.unconfirmed: list[Confirmation] = []
        self.appended: list[tuple[str, bytes, bytes | None]] = []
        self.subscriptions = SubscriptionTable()
        self.retained: RetainedTable[Any] = RetainedTable()
        self.sessions, self.marks_all_sessions = SessionTable(), False
        tables = RoutingView(SETTINGS.routing, self, lambda: True, lambda: 0)
        self.gateway = Gateway(
            settings,
            self,  # type: ignore[arg-type]
            GatewayCounters(),
            has_brokers_time=has_brokers_time,
            tables=tables,
            look_up=self.looked_up.append,
            waits=self.waiting.__contains__,
        )
        self.gateway.start()
        self.gateway.partitions_assigned(frozenset({0}))

    def append(self, topic: str, key: bytes, value: bytes | None, headers: Any, done: Confirmation, **_: Any) -> None:
        self.appended.append((topic, key, value))
        if value is None:
            self.unconfirmed.append(done)
        else:
            asyncio.get_running_loop().call_soon(done, None)

    def arrives(self, data: bytes) -> tuple[Any, Transport]:
        """A device of the client sends CONNECT."""
        socket, transport = self.gateway.new_socket(auth_policy_of(SETTINGS.plain_listener, SETTINGS)), Transport()
        transport.protocol, transport.is_reading = socket, True
        socket.connection_made(transport)
        socket.data_received(data)
        return socket, transport

    async def connected(self) -> tuple[Any, Transport]:
        await until(self.gateway.lease.holds, "the lease")
        socket, transport = self.arrives(connect(flags=0x00))
        connection_id = socket.connection.connection_id
        accept = AcceptConnection(connection_id, 0, 1, subscriptions=(), topic_filters=())
        for answer in self.gateway.commands(0, [encode_command_batch(CommandBatch(client_id="c1", commands=(accept,)))]):
            answer()
        await until(lambda: bool(transport.data), "CONNACK")
        assert transport.take() == bytes.fromhex("20020000")
        return socket, transport

    def lists(self) -> list[SubscriptionList]:
        return [decode_subscriptions(value or b"") for topic, key, value in self.appended if (topic, key) == ("x.lists", b"c1")]


async def test_each_record_goes_to_its_topic_under_its_key() -> None:
    site = Site()
    socket, transport = await site.connected()
    site.appended.clear()
    socket.data_received(packet(0x82, b"\x00\x01", text("a"), b"\x00"))
    await until(lambda: bool(transport.data), "SUBACK")
    socket.data_received(publish("t", b"p", first_byte=0x33, packet_id=1) + publish("t", first_byte=0x31))
    await until(lambda: ("x.uplink", b"c1", b"p") in site.appended, "the first publication")
    site.unconfirmed.pop()(None)
    site.gateway.stop()
    topics = [(topic, key, value) for topic, key, value in site.appended if topic not in OTHERS]
    assert topics[0][:2] == (SETTINGS.events_topic, b"c1")
    assert topics[1:5] == [
        ("x.retained", b"t", b"p"),
        ("x.retained", b"t", None),
        ("x.uplink", b"c1", b"p"),
        ("x.uplink", b"c1", b""),
    ]
    assert [listed.version for listed in site.lists()] == [1]


@pytest.mark.parametrize(("marked_by", "is_current"), [("own", True), ("own", False), ("later", True), ("none", True)])
async def test_a_later_connection_is_looked_for_in_the_tables(marked_by: str, is_current: bool) -> None:
    """sinks/mqtt/connection/handing_on.py, step 2."""
    site = Site()
    socket, _ = await site.connected()
    connection = socket.connection
    if marked_by != "none":
        site.sessions.mark(b"c1", SessionMark(connection.connection_id + (marked_by == "later")))
    site.gateway.look_for_later(socket)
    [answer] = site.looked_up
    answer(is_current)
    assert connection.is_closed is not (marked_by == "own" and is_current)
    site.gateway.stop()


@pytest.mark.parametrize(("level", "goodbye"), [(4, b""), (5, bytes.fromhex("8e"))])
async def test_connack_of_a_later_connection_ends_the_earlier_ones(level: int, goodbye: bytes) -> None:
    """The session does so, too, a micro-batch later [MQTT-3.1.4-3]."""
    site = Site()
    await until(site.gateway.lease.holds, "the lease")
    first, transport = site.arrives(connect(level=level, flags=0x02))
    await until(lambda: bool(transport.take()), "CONNACK")
    second, other = site.arrives(connect(flags=0x00))
    third, newest = site.arrives(connect(flags=0x02))
    assert transport.data == b"", "the CONNECT of the third is not in the log"
    await until(lambda: bool(newest.data), "CONNACK")
    assert (newest.take(), other.data) == (bytes.fromhex("20020000"), b"")
    assert transport.data[2:3] == goodbye
    assert [socket.connection.is_closed for socket in (first, second, third)] == [True, False, False], "the second has no CONNACK"
    assert site.gateway.counters.takeovers == 1
    events = [decode_events(value or b"")[0] for topic, _, value in site.appended if topic == SETTINGS.events_topic]
    assert {type(event) for event in events} == {ClientConnected}, "the session knows it by the CONNECT"
    assert first.earlier is second.earlier is third.earlier is None
    site.gateway.stop()


async def test_an_earlier_connection_that_is_over_is_not_remembered() -> None:
    """It would stay in memory for as long as the later one, if that waits for the session. One before it is still known."""
    site = Site()
    await until(site.gateway.lease.holds, "the lease")
    first, _ = site.arrives(connect(flags=0x00))
    second, _ = site.arrives(connect(flags=0x00))
    third, _ = site.arrives(connect(flags=0x00))
    await until(lambda: third.earlier is second, "the CONNECTs")
    second.connection_lost(None)
    await until(lambda: second.connection.is_closed, "the end of the second")
    assert third.earlier is first
    first.connection_lost(None)
    await until(lambda: first.connection.is_closed, "the end of the first")
    assert third.earlier is None
    site.gateway.stop()


async def test_a_connection_whose_connect_is_not_in_the_log_ends_no_other_one() -> None:
    site = Site()
    first, transport = await site.connected()
    transport.take()
    second, _ = site.arrives(connect(flags=0x02))
    second.connection_lost(None)
    await asyncio.sleep(0)
    assert second.connection.is_closed
    assert not first.connection.is_closed
    site.gateway.stop()


async def test_a_client_is_looked_up_behind_the_end_of_its_session() -> None:
    """The device that has sent DISCONNECT may be back before Kafka has what it said."""
    site = Site()
    socket, _ = await site.connected()
    end = Append(b"", headers=[("ended", b"1")], topic=AppendTopic.SUBSCRIPTIONS, key=b"mark", delays_lookups=True)
    socket.connection._records.add(end)
    socket.feed(socket.connection.tick)
    answers: list[bool] = []
    site.gateway.look_up("other", answers.append)
    assert len(site.looked_up) == 1
    site.gateway.look_up("c1", answers.append)
    site.gateway.look_up("c1", answers.append)
    assert len(site.looked_up) == 1
    for done in site.unconfirmed:
        done(None)
    await until(lambda: len(site.looked_up) == 3, "the look-ups")
    for look_up in site.looked_up:
        look_up(True)
    await until(lambda: answers == [True] * 3, "the answers")
    site.gateway.look_up("c1", answers.append)
    assert len(site.looked_up) == 4
    site.gateway.stop()


async def test_the_list_of_a_client_here_is_appended_again_behind_a_lower_one() -> None:
    site = Site()
    socket, _ = await site.connected()
    socket.data_received(packet(0x82, b"\x00\x01", text("a"), b"\x00"))
    [own] = site.lists()
    site.subscriptions.replace("c1", own)
    await asyncio.to_thread(site.gateway.lower_list_read, "c1")
    await asyncio.to_thread(site.gateway.lower_list_read, "of another gateway")
    await until(lambda: len(site.lists()) == 2, "the list")
    assert site.lists()[1] == SubscriptionList(connection_id=own.connection_id, version=1, subscriptions=own.subscriptions)
    site.gateway.stop()


class TestWakeUps:
    @staticmethod
    def awaken(site: Site, offers: Offers) -> int:
        """Returns how many wake-ups are sent for the offers, the pause after the last one being over."""
        site.gateway.wake_ups._is_pausing = False
        site.appended.clear()
        site.gateway.offers(offers, 0)
        return [topic for topic, *_ in site.appended].count(SETTINGS.fast_path.wake_ups_topic)

    async def test_an_urgent_record_is_followed_by_one(self) -> None:
        site = Site()
        socket, _ = await site.connected()
        await until(lambda: site.gateway.wake_ups.arrive, "a first one as a proof")
        site.gateway.wake_ups._is_pausing = False
        site.appended.clear()
        socket.data_received(publish("t", first_byte=0x34, packet_id=1))
        await until(lambda: len(site.appended) == 2, "the publication and a wake-up")
        assert [topic for topic, *_ in site.appended] == [SETTINGS.events_topic, SETTINGS.fast_path.wake_ups_topic]
        site.gateway.stop()

    async def test_messages_that_the_session_has_to_send_wake_the_engine_up(self) -> None:
        site = Site()
        socket, _ = await site.connected()
        offer = OfferPublish(connection_id=socket.connection.connection_id, position=Position(0, 5), previous=4, timestamp_ms=1)
        slow = (Offers(is_slow=True), Offers(dropped=1), Offers(skipped=1), Offers(closed=1), Offers(here=[("c1", offer)]))
        for offers in slow:
            assert self.awaken(site, offers) == 1, offers
        assert self.awaken(site, Offers(unknown=1)) == 0, "its device is offline"
        site.gateway.stop()

    async def test_a_message_on_the_fast_path_wakes_nobody_up(self) -> None:
        site = Site()
        socket, _ = await site.connected()
        connection_id = socket.connection.connection_id
        grant = OpenFastPath(connection_id, 0, 2, after=Position(0, 4), is_snapshot=True, subscriptions=())
        site.gateway.commands(0, [encode_command_batch(CommandBatch(client_id="c1", commands=(grant,)))])
        headers = (("mqtt-topic", b"t"), ("mqtt-qos", b"1"))
        position, now_ms = Position(0, 5), time.time_ns() // 1_000_000
        offer = OfferPublish(
            connection_id=connection_id, position=position, previous=4, timestamp_ms=now_ms, headers=headers, payload=b"p"
        )
        assert self.awaken(site, Offers(here=[("c1", offer)])) == 0
        assert site.gateway.counters.offers_taken == 1
        assert self.awaken(site, Offers(here=[("another", offer)])) == 1
        site.gateway.stop()


async def test_offers_of_a_poll_for_a_client_share_a_record_and_a_write() -> None:
    site = Site()
    socket, transport = await site.connected()
    connection_id = socket.connection.connection_id
    grant = OpenFastPath(connection_id, 0, 2, after=Position(0, 4), is_snapshot=True, subscriptions=())
    site.gateway.commands(0, [encode_command_batch(CommandBatch(client_id="c1", commands=(grant,)))])
    site.appended.clear()
    now_ms = time.time_ns() // 1_000_000

    def offer(offset: int, connection_id: int = connection_id) -> OfferPublish:
        return OfferPublish(
            connection_id=connection_id,
            position=Position(0, offset),
            previous=offset - 1,
            timestamp_ms=now_ms,
            headers=(("mqtt-topic", b"t"), ("mqtt-qos", b"1")),
            payload=b"%d" % offset,
        )

    here = [("c1", offer(5)), ("another", offer(1)), ("c1", offer(6)), ("c1", offer(7, connection_id - 1))]
    writes_before = transport.writes
    site.gateway.offers(Offers(here=here), 0)
    await until(lambda: bool(transport.data), "both messages")
    (record,) = (value for topic, key, value in site.appended if (topic, key) == (SETTINGS.events_topic, b"c1"))
    assert [event.message.payload for event in decode_events(record or b"") if isinstance(event, FastSent)] == [b"5", b"6"]
    assert transport.writes == writes_before + 1
    assert (site.gateway.counters.offers_taken, site.gateway.counters.offers_ignored) == (2, 2)
    site.gateway.stop()


async def test_an_offer_that_finds_the_lease_expired_is_not_taken() -> None:
    site = Site()
    socket, transport = await site.connected()
    connection_id = socket.connection.connection_id
    grant = OpenFastPath(connection_id, 0, 2, after=Position(0, 4), is_snapshot=True, subscriptions=())
    site.gateway.commands(0, [encode_command_batch(CommandBatch(client_id="c1", commands=(grant,)))])
    site.gateway.lease._holds_until_ms = 0
    offer = OfferPublish(
        connection_id=connection_id,
        position=Position(0, 5),
        previous=4,
        timestamp_ms=time.time_ns() // 1_000_000,
        headers=(("mqtt-topic", b"t"), ("mqtt-qos", b"1")),
    )
    site.gateway.offers(Offers(here=[("c1", offer)]), 0)
    counters = site.gateway.counters
    assert (counters.offers_taken, counters.offers_ignored) == (0, 1)
    assert transport.is_closed
    assert site.gateway.connections == {}
    site.gateway.stop()


ACKS = bytes.fromhex("40020001"), bytes.fromhex("50020002")
DELAY_MS = 200


async def publishing(waiting: bytes) -> tuple[Site, Any, Transport, float]:
    """Returns a device that has published at QoS 1 and QoS 2, and when it did."""
    site = Site(replace(SETTINGS, answer_delay_ms=DELAY_MS))
    socket, transport = await site.connected()
    site.waiting.add(waiting)
    begun_s = asyncio.get_running_loop().time()
    socket.data_received(publish("t", b"p", first_byte=0x32, packet_id=1) + publish("t", b"p", first_byte=0x34, packet_id=2))
    return site, socket, transport, begun_s


async def test_a_device_whose_publications_wait_is_answered_later() -> None:
    site, socket, transport, begun_s = await publishing(b"c1")
    await until(lambda: site.gateway.counters.answers_delayed == 2, "Kafka has confirmed both", within_s=20)
    assert transport.take() == b""
    socket.data_received(b"\xc0\x00")
    assert transport.take() == b"\xd0\x00", "PINGRESP does not wait"
    assert transport.is_reading
    await until(lambda: len(transport.data) >= 8, "the answers")
    assert asyncio.get_running_loop().time() - begun_s >= DELAY_MS / 1_000
    assert transport.take() == b"".join(ACKS), "in order"
    assert site.gateway.counters.answers_delayed == 2
    site.gateway.stop()


async def test_what_a_delayed_device_acknowledges_is_recorded_at_once() -> None:
    site, socket, _, _ = await publishing(b"c1")
    await until(lambda: site.gateway.counters.answers_delayed == 2, "Kafka has confirmed both", within_s=20)
    before = len(site.appended)
    socket.data_received(bytes.fromhex("40020009"))
    assert [topic for topic, *_ in site.appended[before:] if topic not in OTHERS] == [SETTINGS.events_topic]
    site.gateway.stop()


async def test_other_devices_and_other_packets_are_answered_at_once() -> None:
    site, socket, transport, _ = await publishing(b"another client")
    await until(lambda: len(transport.data) >= 8, "the answers")
    assert transport.take() == b"".join(ACKS)
    site.waiting.add(b"c1")
    socket.data_received(packet(0x82, b"\x00\x03", text("a"), b"\x00"))
    await until(lambda: bool(transport.data), "SUBACK")
    assert transport.take() == bytes.fromhex("9003000300")
    assert site.gateway.counters.answers_delayed == 0
    site.gateway.stop()


async def test_a_delayed_device_that_leaves_is_not_written_to() -> None:
    site, socket, transport, _ = await publishing(b"c1")
    await until(lambda: site.gateway.counters.answers_delayed == 2, "Kafka has confirmed both", within_s=20)
    socket.data_received(b"\xe0\x00")
    await until(lambda: socket.connection.is_closed, "DISCONNECT")
    due_s = asyncio.get_running_loop().time() + 1.5 * DELAY_MS / 1_000
    await until(lambda: asyncio.get_running_loop().time() > due_s, "the delay is over")
    assert transport.take() == b""
    assert site.gateway.counters.bugs == 0
    site.gateway.stop()


@pytest.mark.parametrize("has_brokers_time", [True, False])
async def test_an_acknowledgement_that_is_appended_later_says_when_it_came(has_brokers_time: bool) -> None:
    site = Site(has_brokers_time=lambda: has_brokers_time)
    socket, _ = await site.connected()
    site.appended.clear()
    value = encode_puback(1, 2)
    site.gateway.append_all(socket, [Append(value, is_urgent=False), Append(value)])
    (_, _, later), (_, _, at_once) = site.appended
    assert at_once == value
    (event,) = decode_events(later or b"")
    came_ms = time.time_ns() // 1_000_000
    assert event.logged_ms in range(came_ms - 10_000, came_ms + 1) if has_brokers_time else later == value  # type: ignore[union-attr]
    site.gateway.stop()
