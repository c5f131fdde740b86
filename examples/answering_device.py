"""A device that answers requests, with paho-mqtt (docs/guides/backend.md).

    python examples/answering_device.py HOST PORT 5|4

The last one is the protocol level: 5 = MQTT 5, 4 = MQTT 3.1.1. The client id is answering-5 or answering-4.
"""

import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

HOST, PORT, LEVEL = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def answer(device: mqtt.Client, _: object, request: mqtt.MQTTMessage) -> None:
    if LEVEL == 5:
        properties = Properties(PacketTypes.PUBLISH)
        properties.CorrelationData = request.properties.CorrelationData
        device.publish(request.properties.ResponseTopic, b"21.5", qos=1, properties=properties)
    else:
        topic, _, request_id = request.topic.rpartition("/request/")
        device.publish(f"{topic}/response/{request_id}", b"21.5", qos=1)


device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"answering-{LEVEL}", protocol=mqtt.MQTTProtocolVersion(LEVEL))
device.on_connect = lambda *_: device.subscribe("thermostat/#", qos=1)
device.on_subscribe = lambda *_: print("ready", flush=True)
device.on_message = answer
device.connect(HOST, PORT)
device.loop_forever()
