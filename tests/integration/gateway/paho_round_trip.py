"""paho-mqtt publishes and receives something large, over whatever it is connected by."""

import paho.mqtt.client as paho

from state.commands import SendPublish
from state.events import ClientDisconnected, PublishReceived
from state.model import QoS
from tests.integration.gateway.gateway_fakes import GatewayUnderTest
from tests.support.waiting import DEADLINE_S, wait_until


def publishes_and_receives(client: paho.Client, client_id: str, gateway: GatewayUnderTest, *, listener: int) -> None:
    """client: with its TLS settings, not connected yet. listener: by its place in the settings."""
    messages: list[bytes] = []
    client.on_message = lambda _client, _data, message: messages.append(message.payload)
    client.connect("127.0.0.1", gateway.addresses[listener][1])
    client.loop_start()
    try:
        client.publish("up/t", b"x" * 100_000, qos=2).wait_for_publish(DEADLINE_S)
        [event] = gateway.kafka.of(client_id, PublishReceived)
        assert event.payload == b"x" * 100_000
        gateway.kafka.command(client_id, SendPublish, packet_id=1, topic="down", payload=b"y" * 100_000, qos=QoS(1))
        wait_until(lambda: messages == [b"y" * 100_000], "it has come")
    finally:
        client.disconnect()
        client.loop_stop()
    gateway.kafka.wait_for(client_id, ClientDisconnected)
