"""A device that answers requests, with paho-mqtt (docs/guides/backend.md).

    python examples/answering_device.py HOST PORT 5|4

The last one is the protocol level: 5 = MQTT 5, 4 = MQTT 3.1.1. The client id is answering-5 or answering-4.
"""

import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

HOST, PORT, LEVEL = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
# Not thermostat/#: a device that subscribes to the topic of its own answers gets them back.
REQUESTS = "thermostat/get" if LEVEL == 5 else "thermostat/get/request/+"


def answer(device: mqtt.Client, _: object, request: mqtt.MQTTMessage) -> None:
    if LEVEL == 5:
        answer_to = getattr(request.properties, "ResponseTopic", None)
        if answer_to is None:
            return  # a message that asks for nothing
        properties = Properties(PacketTypes.PUBLISH)
        properties.CorrelationData = getattr(request.properties, "CorrelationData", b"")
        device.publish(answer_to, b"21.5", qos=1, properties=properties)
    else:
        topic, is_request, request_id = request.topic.rpartition("/request/")
        if is_request:
            device.publish(f"{topic}/response/{request_id}", b"21.5", qos=1)


device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"answering-{LEVEL}", protocol=mqtt.MQTTProtocolVersion(LEVEL))
device.on_connect = lambda *_: device.subscribe(REQUESTS, qos=1)
device.on_subscribe = lambda *_: print("ready", flush=True)
device.on_message = answer
device.connect(HOST, PORT)
device.loop_forever()
