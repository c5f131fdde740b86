"""A device with TLS, a user and a kept session, with paho-mqtt (docs/guides/devices.md).

    python examples/tls_device.py HOST PORT CA_FILE USER

Reads the password from standard input, because every user of the machine can read arguments. The client id is the user's name.
"""

import sys

import paho.mqtt.client as mqtt

HOST, PORT, CA_FILE, USER = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]

device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=USER, clean_session=False)
device.tls_set(CA_FILE)
device.username_pw_set(USER, sys.stdin.readline().rstrip("\n"))
device.on_connect = lambda _device, _data, _flags, reason, _properties: print("connected:", reason, flush=True)
device.on_message = lambda _device, _data, message: print(message.topic, message.payload.decode(), flush=True)
device.connect(HOST, PORT)
device.loop_forever()
