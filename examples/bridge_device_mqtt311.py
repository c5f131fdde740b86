"""Runs a device behind a broker with paho-mqtt and MQTT 3.1.1, for the bridge's mode `device` (docs/guides/bridge.md).

    python examples/bridge_device_mqtt311.py HOST PORT CLIENT_ID

Prints each message once. The bridge needs topic_template = "devices/{client_id}/m/{message_id}/{topic}".
"""

import json
import sys
from collections import OrderedDict
from urllib.parse import unquote

import paho.mqtt.client as mqtt

HOST, PORT, CLIENT_ID = sys.argv[1], int(sys.argv[2]), sys.argv[3]
REMEMBERED = 10_000  # message ids; store them on disk if a reboot must not repeat a message

done = OrderedDict()


def handle(topic, payload):
    """Does the device's work. If it raises, the message is not acknowledged and comes again."""
    print(json.dumps({"topic": topic, "payload": payload.decode()}), flush=True)


# ---- the few lines ----
def on_message(client, _userdata, message):
    message_id = unquote(message.topic.split("/")[3])  # devices/CLIENT_ID/m/MESSAGE_ID/…
    if message_id not in done:  # a copy is only acknowledged again
        handle(message.topic, message.payload)
        done[message_id] = True
        if len(done) > REMEMBERED:
            done.popitem(last=False)
    if message.qos:
        client.publish(f"devices/{CLIENT_ID}/ack", json.dumps({"id": message_id}), qos=1)


def on_connect(client, *_):
    client.subscribe(f"devices/{CLIENT_ID}/m/#", 2)
    client.publish(f"devices/{CLIENT_ID}/presence", "online", qos=1, retain=True)


# ---- the client that uses them ----
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=CLIENT_ID, protocol=mqtt.MQTTv311)
client.will_set(f"devices/{CLIENT_ID}/presence", "offline", qos=1, retain=True)
client.on_connect, client.on_message = on_connect, on_message
client.connect(HOST, PORT)
client.loop_forever()
