"""Asks a device for an answer (docs/guides/backend.md).

python examples/request.py [KAFKA]
"""

import sys

from inflight import Producer, RequestFailed

KAFKA = sys.argv[1] if len(sys.argv) > 1 else None

with Producer(KAFKA) as producer:
    answer = producer.request("answering-5", "thermostat/get", b"target", timeout_s=60)
    print("MQTT 5 says", answer.payload.decode())

    # A device of MQTT 3.1.1 sees no properties, so the request has its id in the topic.
    answer = producer.request("answering-4", "thermostat/get", b"target", id_in_topic=True, timeout_s=60)
    print("MQTT 3.1.1 says", answer.payload.decode())

    try:
        producer.request("nobody", "thermostat/get", b"target", qos=0, timeout_s=2)
    except RequestFailed as failure:
        print("no answer:", failure)
