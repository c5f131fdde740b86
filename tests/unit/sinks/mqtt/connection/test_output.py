"""sinks.mqtt.connection.connection: what does not fit into the client's packets, and what is written together."""

from state.commands import AcceptConnection, SendPublish
from state.events import ConnectionLost, Subscribed
from state.model import QoS
from tests.unit.sinks.mqtt.connection.harness import Harness, connected, written
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, text


class TestMaximumPacketSizeOfTheClient:
    """[MQTT-3.1.2-24] for what is no PUBLISH; those are the session's business."""

    def test_a_connack_without_room_becomes_a_refusal(self) -> None:
        for limit, answer in ((10, "2003009500"), (4, "")):
            harness = Harness()
            harness.send(connect(level=5, flags=0x00, properties=b"\x27" + limit.to_bytes(4, "big")))
            assert harness.command(AcceptConnection) == bytes.fromhex(answer)
            assert harness.connection.is_closed
            harness.last(ConnectionLost)

    def test_a_suback_that_is_too_large_closes_and_grants_nothing(self) -> None:
        harness = connected(5, properties=b"\x27\x00\x00\x00\x28")
        subscribe = packet(0x82, b"\x00\x09\x00", *(text(f"t/{number}") + b"\x01" for number in range(40)))
        assert harness.send(subscribe) == bytes.fromhex("e00195")
        assert not any(isinstance(event, Subscribed) for event in harness.events)
        harness.last(ConnectionLost)


def test_the_commands_of_one_record_are_written_in_one() -> None:
    harness = connected()
    ids = {"connection_id": 77, "partition": 3}
    publishes = [
        SendPublish(**ids, sequence=harness.sequence + number, packet_id=number, topic="t", payload=b"p", qos=QoS(1))
        for number in (1, 2)
    ]
    harness.feed("apply", publishes, "")
    assert harness.effects.write == written(1) + written(2)
    assert harness.connection.tick(harness.now_ms).write == b""
