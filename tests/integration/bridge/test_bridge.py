"""The bridge between a scripted broker and a scripted engine: presence, deliveries, throttling, trouble."""

from typing import Any

import pytest

from sinks.bridge.settings import Acknowledgement, PresenceSource
from sinks.host.command_order import BUILD_MISMATCH
from sinks.host.connection_ids import ConnectionIds, ConnectionKind
from sinks.kafka.partitioning import partition_of
from sinks.mqtt.codec.packets import ConnAck
from state.commands import CloseConnection, CommandBatch, SendPublish, SendPubRel
from state.events import ClientConnected, ConnectionLost, PubAckReceived, PubCompReceived, PubRecReceived
from state.model import PublishProperties, QoS, ReasonCode
from state.records.commands import encode_command_batch
from state.records.leases import decode_lease
from state.settings import BackoffSettings
from tests.integration.bridge.bridge_fakes import ALL, PARTITIONS, BridgeUnderTest, FakeBroker, running_bridge
from tests.integration.gateway.gateway_fakes import GatewayUnderTest, Record, running_gateway
from tests.support.waiting import wait_until


def birth(bridge: BridgeUnderTest, client_id: str = "d1", *, retain: bool = False, connections: int = 1) -> ClientConnected:
    bridge.broker.deliver(f"devices/{client_id}/presence", "online", retain=retain)
    return bridge.kafka.wait_for(client_id, ClientConnected, connections)[-1]


def send(bridge: BridgeUnderTest, message_id: str, packet_id: int, *, client_id: str = "d1", qos: int = 1, **fields: Any) -> None:
    values = {"topic": "cmd", "payload": message_id.encode(), **fields}
    bridge.kafka.command(client_id, SendPublish, packet_id=packet_id, qos=QoS(qos), message_id=message_id, **values)


# --- presence ------------------------------------------------------------------------------------------------------------------


def test_a_birth_message_connects_the_device_and_a_will_takes_it_offline() -> None:
    with running_bridge() as bridge:
        connected = birth(bridge)
        assert connected.commands_partition == partition_of(b"d1", PARTITIONS)
        assert (connected.clean_start, connected.protocol_version, connected.session_expiry_interval_s) == (False, 4, None)
        bridge.broker.deliver("devices/d1/presence", "offline")
        [lost] = bridge.kafka.wait_for("d1", ConnectionLost)
        assert lost.connection_id == connected.connection_id


def test_a_retained_presence_connects_once_and_a_new_birth_again() -> None:
    with running_bridge() as bridge:
        first = birth(bridge, retain=True)
        bridge.broker.deliver("devices/d1/presence", "online", retain=True)
        second = birth(bridge, retain=False, connections=2)
        assert len(bridge.kafka.of("d1", ClientConnected)) == 2
        assert second.connection_id > first.connection_id


def test_a_bridge_connects_the_devices_of_its_partitions_only() -> None:
    ours = partition_of(b"d1", PARTITIONS)
    with running_bridge(owned=ALL - {ours}) as bridge:
        bridge.broker.deliver("devices/d1/presence", "online")
        other = next(f"x{n}" for n in range(99) if partition_of(b"x%d" % n, PARTITIONS) != ours)
        birth(bridge, other)
        assert bridge.kafka.of("d1", ClientConnected) == []
        bridge.kafka.assign(ours)
        bridge.kafka.wait_for("d1", ClientConnected)
        bridge.kafka.revoke(ours)
        bridge.kafka.wait_for("d1", ConnectionLost)
        assert bridge.kafka.of(other, ConnectionLost) == []


@pytest.mark.parametrize(
    ("filters", "topics"),
    [
        (
            ("$events/client_connected", "$events/client_disconnected"),
            ("$events/client_connected", "$events/client_disconnected"),
        ),
        (
            ("$SYS/brokers/+/clients/+/connected", "$SYS/brokers/+/clients/+/disconnected"),
            ("$SYS/brokers/emqx@10.0.0.1/clients/d1/connected", "$SYS/brokers/emqx@10.0.0.1/clients/d1/disconnected"),
        ),
    ],
)
def test_events_of_the_broker_say_who_is_there(filters: tuple[str, str], topics: tuple[str, str]) -> None:
    connected, disconnected = ((one,) for one in filters)
    with running_bridge(presence=PresenceSource.EVENTS, connected_topics=connected, disconnected_topics=disconnected) as bridge:
        assert set(filters) <= set(bridge.broker.subscriptions)
        bridge.broker.deliver(topics[0], '{"clientid": "d1", "username": "u"}')
        bridge.kafka.wait_for("d1", ClientConnected)
        bridge.broker.deliver(topics[1], '{"clientid": "d1"}')
        bridge.kafka.wait_for("d1", ConnectionLost)


def test_always_there_are_those_of_the_list_and_whoever_is_heard_of() -> None:
    with running_bridge(presence=PresenceSource.ALWAYS, clients=("d1",)) as bridge:
        bridge.kafka.wait_for("d1", ClientConnected)
        bridge.broker.deliver("devices/d2/up/hello", "hi")
        bridge.kafka.wait_for("d2", ClientConnected)


def test_a_bridge_takes_over_the_connections_that_nobody_repeats() -> None:
    with running_bridge(presence=PresenceSource.EVENTS) as bridge:
        orphan(bridge, ConnectionKind.BRIDGE)
        bridge.kafka.wait_for("d1", ConnectionLost)
        bridge.kafka.wait_for("d1", ClientConnected)


# --- deliveries ----------------------------------------------------------------------------------------------------------------


def test_the_device_acknowledges_a_qos_1_message_by_its_message_id() -> None:
    with running_bridge() as bridge:
        connected = birth(bridge)
        send(bridge, "m-1", 7, properties=PublishProperties(response_topic="app/answers", correlation_data=b"\x00app"))
        [publish] = bridge.broker.wait_for("devices/d1/cmd")
        assert (publish.qos, publish.payload, publish.properties.response_topic) == (1, b"m-1", "devices/d1/ack")
        assert publish.properties.correlation_data == b"m-1"
        assert publish.properties.user_properties == (
            ("inflight-message-id", "m-1"),
            ("inflight-bridge", "bridge"),
            ("inflight-response-topic", "app/answers"),
            ("inflight-correlation-data", "AGFwcA=="),
        )
        assert bridge.kafka.of("d1", PubAckReceived) == []  # the broker's PUBACK is not the device's
        bridge.broker.acknowledge("d1", "m-1")
        [acknowledged] = bridge.kafka.wait_for("d1", PubAckReceived)
        assert acknowledged == PubAckReceived(connection_id=connected.connection_id, packet_id=7)


def test_one_answer_of_the_device_completes_a_qos_2_exchange() -> None:
    with running_bridge() as bridge:
        connection_id = birth(bridge).connection_id
        send(bridge, "m-1", 7, qos=2)
        [publish] = bridge.broker.wait_for("devices/d1/cmd")
        assert publish.qos == 2
        bridge.broker.acknowledge("d1", "m-1")
        bridge.kafka.wait_for("d1", PubCompReceived)
        assert bridge.kafka.of("d1", PubRecReceived) == [
            PubRecReceived(connection_id=connection_id, packet_id=7, pubrel_sent=True)
        ]


def test_a_pubrel_is_answered_for_a_device_that_has_the_message() -> None:
    with running_bridge() as bridge:
        birth(bridge)
        bridge.kafka.command("d1", SendPubRel, packet_id=9)
        [completed] = bridge.kafka.wait_for("d1", PubCompReceived)
        assert completed.packet_id == 9


@pytest.mark.parametrize(("qos", "kind"), [(1, PubAckReceived), (2, PubRecReceived)])
def test_a_refusal_of_the_device_carries_its_reason_code(qos: int, kind: type) -> None:
    with running_bridge() as bridge:
        birth(bridge)
        send(bridge, "m-1", 7, qos=qos)
        bridge.broker.wait_for("devices/d1/cmd")
        bridge.broker.acknowledge("d1", "m-1", '{"reason_code": 135}')
        [refused] = bridge.kafka.wait_for("d1", kind)
        assert refused.reason_code == ReasonCode.NOT_AUTHORIZED
        assert bridge.kafka.of("d1", PubCompReceived) == []


def test_a_resend_has_the_same_message_id_and_one_answer_counts() -> None:
    with running_bridge() as bridge:
        birth(bridge)
        send(bridge, "m-1", 7, qos=2)
        bridge.broker.wait_for("devices/d1/cmd")
        wait_until(lambda: not bridge.broker._held, "the broker has answered")
        copies = 1

        def resent() -> bool:  # the broker's answer to the first copy may still be on its way to the bridge
            nonlocal copies
            copies += 1
            send(bridge, "m-1", 7, qos=2, dup=True)
            return len(bridge.broker.of("devices/d1/cmd")) > 1

        wait_until(resent, "a second copy")
        assert {publish.properties.correlation_data for publish in bridge.broker.of("devices/d1/cmd")} == {b"m-1"}
        bridge.broker.acknowledge("d1", "m-1")
        bridge.broker.acknowledge("d1", "m-1")
        wait_until(lambda: bridge.counters.acknowledgements_unknown == 1, "the second answer")
        assert len(bridge.kafka.of("d1", PubRecReceived)) == 1


def test_an_answer_to_a_copy_from_before_a_reconnect_counts_for_the_replay() -> None:
    with running_bridge() as bridge:
        birth(bridge)
        send(bridge, "m-1", 7)
        bridge.broker.wait_for("devices/d1/cmd")
        second = birth(bridge, connections=2)
        send(bridge, "m-1", 7, dup=True)
        bridge.broker.wait_for("devices/d1/cmd", 2)
        bridge.broker.acknowledge("d1", "m-1")
        [acknowledged] = bridge.kafka.wait_for("d1", PubAckReceived)
        assert acknowledged.connection_id == second.connection_id


def test_in_broker_mode_the_answer_of_the_broker_is_the_acknowledgement() -> None:
    with running_bridge(acknowledgement=Acknowledgement.BROKER) as bridge:
        birth(bridge)
        send(bridge, "m-1", 1)
        send(bridge, "m-2", 2, qos=2)
        bridge.kafka.wait_for("d1", PubAckReceived)
        bridge.kafka.wait_for("d1", PubCompReceived)
        [first, _] = bridge.broker.of("devices/d1/cmd")
        assert first.properties.response_topic is None
        assert "devices/+/ack" not in bridge.broker.subscriptions


def test_a_resend_waits_while_the_broker_has_not_taken_the_first_copy() -> None:
    broker = FakeBroker()
    broker.answers = lambda publish: None
    with running_bridge(broker) as bridge:
        birth(bridge)
        send(bridge, "m-1", 7)
        broker.wait_for("devices/d1/cmd")
        send(bridge, "m-1", 7, dup=True)
        send(bridge, "m-2", 8)
        wait_until(lambda: len(broker.of("devices/d1/cmd")) == 2, "the next message")
        assert [publish.payload for publish in broker.published] == [b"m-1", b"m-2"]


def test_a_topic_that_the_bridge_itself_subscribes_is_refused_for_good() -> None:
    with running_bridge() as bridge:
        birth(bridge)
        send(bridge, "m-1", 7, topic="up/loop")
        [refused] = bridge.kafka.wait_for("d1", PubAckReceived)
        assert refused.reason_code == ReasonCode.TOPIC_NAME_INVALID
        assert bridge.broker.published == []


def test_an_unreadable_acknowledgement_is_counted_and_harms_nobody() -> None:
    with running_bridge() as bridge:
        birth(bridge)
        for payload in (b"\xff", b"[]", b"{}", b'{"id": 5}', b'{"id": "m-1", "reason_code": 999}'):
            bridge.broker.deliver("devices/d1/ack", payload)
        wait_until(lambda: bridge.counters.acknowledgements_unreadable == 5, "five complaints")
        send(bridge, "m-1", 7)
        bridge.broker.wait_for("devices/d1/cmd")
        bridge.broker.acknowledge("d1", "m-1")
        bridge.kafka.wait_for("d1", PubAckReceived)


# --- a broker that throttles ---------------------------------------------------------------------------------------------------


def test_0x97_of_the_broker_holds_everything_off_for_the_backoff() -> None:
    broker = FakeBroker()
    broker.answers = lambda publish: ReasonCode.QUOTA_EXCEEDED if len(broker.published) == 1 else 0
    with running_bridge(broker, backoff=BackoffSettings(initial_ms=3_000)) as bridge:  # m-2 must come before its end
        birth(bridge)
        send(bridge, "m-1", 1)
        [refused] = bridge.kafka.wait_for("d1", PubAckReceived)
        assert refused.reason_code == ReasonCode.QUOTA_EXCEEDED
        send(bridge, "m-2", 2)
        wait_until(lambda: bridge.counters.publishes_held_off == 1, "held off")
        assert len(broker.published) == 1
        packet_ids = iter(range(3, 9_999))

        def goes_out() -> bool:
            number = next(packet_ids)
            send(bridge, f"m-{number}", number)
            return len(broker.published) > 1

        wait_until(goes_out, "the backoff is over")


def test_the_receive_maximum_of_the_broker_is_kept() -> None:
    broker = FakeBroker()
    broker.connack = ConnAck(receive_maximum=3)
    broker.answers = lambda publish: None
    with running_bridge(broker) as bridge:
        birth(bridge)
        for number in range(1, 11):
            send(bridge, f"m-{number}", number)
        for number in range(1, 11):
            broker.wait_for("devices/d1/cmd", min(10, number + 2))
            broker.answer_held()
        broker.wait_for("devices/d1/cmd", 10)
        assert broker.most_unanswered == 3


def test_what_is_too_large_for_the_broker_is_told_to_the_session() -> None:
    broker = FakeBroker()
    broker.connack = ConnAck(maximum_packet_size_bytes=10_000)
    with running_bridge(broker) as bridge:
        limit = birth(bridge).maximum_packet_size_bytes
        assert limit is not None
        message_id = "m" * 400
        send(bridge, message_id, 1, payload=b"x" * (limit - 20))
        [publish] = broker.wait_for("devices/d1/cmd")
        assert len(publish.payload) > 7_000


def test_a_broker_that_refuses_is_tried_again_after_the_backoff() -> None:
    broker = FakeBroker()
    broker.connack = ConnAck(reason_code=ReasonCode.QUOTA_EXCEEDED)
    backoff = BackoffSettings(initial_ms=300, jitter=0.0)  # then 480 and 768
    with running_bridge(broker, ready=False, backoff=backoff) as bridge:
        wait_until(lambda: len(broker.attempts.get("bridge", ())) >= 4, "attempts")
        first, *_, fourth = broker.attempts["bridge"][:4]
        # A busy machine may see the first one late, and libuv counts a timer from the beginning of the loop's turn.
        assert fourth - first >= 0.8 * (0.3 + 0.48 + 0.768)
        broker.connack = ConnAck()
        wait_until(bridge.ready.is_set, "ready")


# --- trouble -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["bridge", "bridge-out"])
def test_devices_go_offline_with_the_broker_and_come_back_with_it(which: str) -> None:
    with running_bridge() as bridge:
        birth(bridge)
        bridge.broker.cut(which)
        bridge.kafka.wait_for("d1", ConnectionLost)
        assert bridge.counters.broker_losses == {"the broker closed the connection": 1}
        wait_until(lambda: {"bridge", "bridge-out"} <= bridge.broker.peers.keys(), "both connections")
        if which == "bridge":  # its presence has to be heard again
            wait_until(lambda: bridge.counters.broker_connections >= 3, "subscribed again")
            birth(bridge, retain=True, connections=2)
        bridge.kafka.wait_for("d1", ClientConnected, 2)


def test_a_silent_broker_is_left() -> None:
    with running_bridge(keep_alive_s=1) as bridge:
        birth(bridge)
        bridge.broker.silent = True
        bridge.kafka.wait_for("d1", ConnectionLost)
        assert sum(bridge.counters.broker_losses.values()) >= 1
        bridge.broker.silent = False


def test_a_publication_is_acknowledged_after_kafka_has_it() -> None:
    with running_bridge() as bridge:
        bridge.kafka.holding = lambda record: record.topic.endswith("uplink")
        first = bridge.broker.deliver("devices/d9/up/a/b", b"\x00 1", properties=PublishProperties(content_type="text/plain"))
        wait_until(lambda: len(bridge.kafka.uplink()) == 1, "the record")
        second = bridge.broker.deliver("devices/d1/presence", "online")
        bridge.kafka.wait_for("d1", ClientConnected)
        assert bridge.broker.acknowledged == []  # nor what came later: acknowledgements keep their order
        bridge.kafka.release()
        wait_until(lambda: bridge.broker.acknowledged == [first, second], "both PUBACKs, in order")
        [record] = bridge.kafka.uplink()
        assert (record.key, record.value) == (b"d9", b"\x00 1")
        assert (record.header("mqtt-topic"), record.header("client-id")) == (b"a/b", b"d9")
        assert record.header("content-type") == b"text/plain"
        assert "$share/inflight/devices/+/up/#" in bridge.broker.subscriptions or "devices/+/up/#" in bridge.broker.subscriptions


@pytest.mark.parametrize(
    ("topic", "properties", "reason"),
    [
        ("devices/d1/up/t", (("inflight-bridge", "another one"), ("inflight-message-id", "m-1")), "returned"),
        ("devices/d1/up/$SYS/broker/version", (), "server_topic"),
    ],
)
def test_a_publication_that_is_not_a_devices_own_is_not_handed_on(
    topic: str, properties: tuple[tuple[str, str], ...], reason: str
) -> None:
    with running_bridge() as bridge:
        first = bridge.broker.deliver(topic, "1", properties=PublishProperties(user_properties=properties))
        second = bridge.broker.deliver("devices/d1/up/t", "2")
        wait_until(lambda: bridge.broker.acknowledged == [first, second], "both PUBACKs")
        assert [record.value for record in bridge.kafka.uplink()] == [b"2"]
        assert bridge.counters.publications_ignored == {reason: 1}


def test_a_publication_that_kafka_does_not_take_is_asked_for_again() -> None:
    def is_uplink(record: Record) -> bool:
        return record.topic.endswith("uplink")

    with running_bridge() as bridge:
        bridge.kafka.failing = is_uplink
        bridge.broker.deliver("devices/d1/up/t", "1")
        wait_until(lambda: len([c for c in bridge.broker.connects if c.client_id == "bridge"]) >= 2, "a new connection")
        assert bridge.broker.acknowledged == []
        assert not any(connect.clean_start for connect in bridge.broker.connects if connect.client_id == "bridge")


def test_an_event_that_kafka_does_not_take_starts_the_device_over() -> None:
    with running_bridge() as bridge:
        birth(bridge)
        send(bridge, "m-1", 7)
        bridge.broker.wait_for("devices/d1/cmd")
        failures = [True]
        bridge.kafka.failing = lambda record: record.topic.endswith("events") and bool(failures) and failures.pop()
        bridge.broker.acknowledge("d1", "m-1")
        bridge.kafka.wait_for("d1", ConnectionLost)
        wait_until(lambda: bridge.counters.broker_connections >= 3, "a new connection, on which the broker delivers again")
        birth(bridge, retain=True, connections=2)
        assert bridge.broker.acknowledged[0] == 1
        assert 2 not in bridge.broker.acknowledged


def test_commands_for_a_connection_that_nobody_holds_are_answered_once() -> None:
    with running_bridge() as bridge:
        connection_id = orphan(bridge, ConnectionKind.BRIDGE)
        orphan(bridge, ConnectionKind.BRIDGE, connection_id)
        [lost] = bridge.kafka.wait_for("d1", ConnectionLost)
        assert lost.connection_id == connection_id
        assert bridge.kafka.of("d1", ClientConnected) == []  # who is there, the retained messages say


def test_a_gateway_next_to_it_keeps_quiet_about_connections_of_bridges() -> None:
    with running_gateway() as gateway:
        orphan(gateway, ConnectionKind.BRIDGE)
        orphan(gateway, ConnectionKind.GATEWAY)
        assert len(gateway.kafka.wait_for("d1", ConnectionLost)) == 1
        assert gateway.counters.commands_without_connection == 1


def test_a_device_that_went_to_a_gateway_is_let_go_until_its_birth() -> None:
    with running_bridge() as bridge:
        birth(bridge)
        bridge.kafka.command("d1", CloseConnection, reason_code=ReasonCode.SESSION_TAKEN_OVER)
        wait_until(lambda: bridge.counters.devices == 0, "let go")
        bridge.kafka.revoke(*ALL)
        wait_until(lambda: bridge.counters.partitions_owned == 0, "it owns nothing")
        bridge.kafka.assign(*ALL)
        wait_until(lambda: bridge.counters.partitions_owned == len(ALL), "it owns all again")
        assert len(bridge.kafka.of("d1", ClientConnected)) == 1
        birth(bridge, connections=2)
        assert bridge.kafka.of("d1", ConnectionLost) == []


@pytest.mark.promise("another-build")
def test_repeated_commands_of_another_build_connect_the_device_anew() -> None:
    with running_bridge() as bridge:
        first = birth(bridge)
        for code in ("a", "b"):
            command = SendPubRel(connection_id=first.connection_id, partition=first.commands_partition, sequence=2, packet_id=1)
            batch = CommandBatch(client_id="d1", commands=(command,), code=code)
            bridge.kafka.deliver(first.commands_partition, [encode_command_batch(batch)])
        lost = bridge.kafka.wait_for("d1", ConnectionLost)[-1]
        assert (lost.connection_id, lost.reason) == (first.connection_id, BUILD_MISMATCH)
        assert bridge.kafka.wait_for("d1", ClientConnected, count=2)[-1].connection_id > first.connection_id
        assert bridge.counters.closed_for_other_code == 1


def test_a_refusal_lifts_the_next_ids_above_the_newest_connection() -> None:
    ahead = 1 << 61
    with running_bridge() as bridge:
        bridge.kafka.accepting.fields = None
        birth(bridge)
        bridge.kafka.wait_for("d1", ClientConnected)
        bridge.kafka.command("d1", CloseConnection, reason_code=0x89, newest_connection_id=ahead)
        assert bridge.kafka.wait_for("d1", ClientConnected, count=2)[-1].connection_id > ahead


def test_without_a_lease_all_devices_are_offline() -> None:
    with running_bridge(lease_ms=1_000) as bridge:
        first = birth(bridge)
        bridge.kafka.failing = lambda record: record.topic.endswith("leases")
        assert bridge.kafka.wait_for("d1", ConnectionLost)[-1].connection_id == first.connection_id
        bridge.kafka.failing = lambda record: False
        second = bridge.kafka.wait_for("d1", ClientConnected, 2)[-1]
        assert first.lease_id != second.lease_id
        assert bridge.counters.leases_lost == 1
    leases = [decode_lease(record.value) for record in bridge.kafka.records if record.topic.endswith("leases")]
    assert leases[-1].ended, "a bridge that stops ends its lease"


def test_a_stopping_bridge_takes_its_devices_offline() -> None:
    with running_bridge() as bridge:
        birth(bridge)
        bridge.stop()
        bridge.kafka.wait_for("d1", ConnectionLost)


def orphan(bridge: BridgeUnderTest | GatewayUnderTest, kind: ConnectionKind, connection_id: int | None = None) -> int:
    """A command for a connection that this bridge does not hold."""
    number = connection_id or ConnectionIds(kind).next()
    partition = partition_of(b"d1", PARTITIONS)
    command = SendPubRel(connection_id=number, partition=partition, sequence=1, packet_id=1)
    bridge.kafka.deliver(partition, [encode_command_batch(CommandBatch(client_id="d1", commands=(command,)))])
    return number
