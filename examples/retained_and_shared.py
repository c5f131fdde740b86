"""Retained messages and a shared subscription, with paho-mqtt (docs/guides/topics.md).

    python examples/retained_and_shared.py HOST PORT

Needs routing.enabled, which is the default.
"""

import queue
import sys

import paho.mqtt.client as mqtt

HOST, PORT, WAIT_S = sys.argv[1], int(sys.argv[2]), 60
ORDERS = [f"order {number}" for number in range(1, 11)]


def connected(client_id, topic_filter=None):
    """Returns a device of MQTT 5, and the queue of its messages, once its subscription is in force."""
    messages, ready = queue.Queue(), queue.Queue()
    device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5)
    device.on_connect = lambda *_: device.subscribe(topic_filter, qos=1) if topic_filter else ready.put(True)
    device.on_subscribe = lambda *_: ready.put(True)
    device.on_message = lambda _device, _data, message: messages.put((client_id, message.payload.decode()))
    device.connect(HOST, PORT)
    device.loop_start()
    ready.get(timeout=WAIT_S)
    return device, messages


shop, _ = connected("shop")
shop.publish("shop/sign", b"open", qos=1, retain=True).wait_for_publish(WAIT_S)

# Whoever subscribes later gets the newest retained message.
visitor, seen = connected("visitor", "shop/#")
print("the sign says", seen.get(timeout=WAIT_S)[1])

# Each order goes to one member of the group `tills`.
tills = [connected(f"till-{number}", "$share/tills/orders/#") for number in (1, 2)]
for order in ORDERS:
    shop.publish("orders/new", order, qos=1).wait_for_publish(WAIT_S)
taken = []
while len(taken) < len(ORDERS):
    for _, messages in tills:
        while not messages.empty():
            taken.append(messages.get()[1])
print("the tills have", len(taken), "orders, each once:", sorted(taken) == sorted(ORDERS))

shop.publish("shop/sign", b"", qos=1, retain=True).wait_for_publish(WAIT_S)  # removes it
for device in (shop, visitor, *(till for till, _ in tills)):
    device.disconnect()
    device.loop_stop()
