"""Publishes to whoever subscribes to a topic, and sends one message to many clients by name (docs/guides/producer.md).

    python examples/publish.py KAFKA [PREFIX]

KAFKA is `host:port`; PREFIX is topics.prefix. The first part needs routing.enabled = true.
"""

import sys
from uuid import uuid4

from inflight import Producer, SendFailed, SomeSendsFailed

KAFKA, PREFIX = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "inflight"
LAMPS = [f"lamp-{number}" for number in range(1, 1_001)]

topics = {"topic": f"{PREFIX}.messages", "publications_topic": f"{PREFIX}.publications", "throttle_topic": f"{PREFIX}.throttle"}
with Producer(KAFKA, **topics) as producer:
    # Every client with a matching subscription gets it, and those that subscribe later get the newest one.
    published = producer.publish("plant/1/target", b"20.5", qos=1, retain=True)
    print("published", published.message_id)

    # Each of these gets it, whatever it subscribes to.
    missing, message_id = LAMPS, str(uuid4())
    try:
        producer.send_many(missing, "commands/switch", b"off", qos=2, message_id=message_id)
        missing = []
    except SomeSendsFailed as failure:  # the others have it: try again later, with the same id
        missing = [outcome.client_id for outcome in failure.outcomes if isinstance(outcome, SendFailed)]
    print("sent to", len(LAMPS) - len(missing), "lamps; not to", missing)
