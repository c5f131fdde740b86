"""Reads what devices publish, as a member of the group `billing` (docs/guides/backend.md).

python examples/uplink.py [KAFKA]
"""

import signal
import sys

from inflight import Uplink

KAFKA = sys.argv[1] if len(sys.argv) > 1 else None

with Uplink(KAFKA, group="billing", topics=["meter/+/reading"]) as uplink:
    signal.signal(signal.SIGTERM, lambda *_: uplink.stop())
    for message in uplink:
        print(message.client_id, message.topic, message.payload.decode())
        if message.payload == b"last":
            uplink.stop()  # ends the loop after this message, which counts as handled; `break` would leave it to the next loop
