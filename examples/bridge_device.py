"""Runs a device behind a broker with paho-mqtt and MQTT 5, for the bridge's mode `device` (docs/guides/bridge.md).

    python examples/bridge_device.py HOST PORT CLIENT_ID

Prints each message once. For MQTT 3.1.1 see bridge_device_mqtt311.py.
"""

import json
import sys
from collections import OrderedDict

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

HOST, PORT, CLIENT_ID = sys.argv[1], int(sys.argv[2]), sys.argv[3]
REMEMBERED = 10_000  # message ids; store them on disk if a reboot must not repeat a message

done = OrderedDict()


def handle(topic, payload):
    """Does the device's work. If it raises, the message is not acknowledged and comes again."""
    print(json.dumps({"topic": topic, "payload": payload.decode()}), flush=True)


# ---- the few lines ----
def on_message(client, _userdata, message):
    answer_to = getattr(message.properties, "ResponseTopic", None)
    if answer_to is None:  # QoS 0 has no acknowledgement
        handle(message.topic, message.payload)
        return
    message_id = message.properties.CorrelationData
    if message_id not in done:  # a copy is only acknowledged again
        handle(message.topic, message.payload)
        done[message_id] = True
        if len(done) > REMEMBERED:
            done.popitem(last=False)
    ack = Properties(PacketTypes.PUBLISH)
    ack.CorrelationData = message_id
    client.publish(answer_to, qos=1, properties=ack)


def on_connect(client, *_):
    client.subscribe([(f"devices/{CLIENT_ID}/cmd/#", 2), (f"devices/{CLIENT_ID}/m/#", 2)])
    client.publish(f"devices/{CLIENT_ID}/presence", "online", qos=1, retain=True)


# ---- the client that uses them ----
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=CLIENT_ID, protocol=mqtt.MQTTv5)
client.will_set(f"devices/{CLIENT_ID}/presence", "offline", qos=1, retain=True)
client.on_connect, client.on_message = on_connect, on_message
client.connect(HOST, PORT)
client.loop_forever()
