"""Runs a backend of Inflight as a process of its own: reads `Order`s from its standard input, sends them with librdkafka.

python -m bench.contestants.kafka_backend HOST:PORT
"""

import sys
import time
from functools import partial

import msgspec

from bench.contestants.child import Order, Sent
from bench.devices import PAYLOAD_BYTES
from bench.end_to_end import Backend
from bench.simulated_devices import stamped, unstamped


def main() -> None:
    backend = Backend(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=Order)
        started, cpu_s = time.time(), time.process_time()
        payload = partial(stamped if order.counted else unstamped, PAYLOAD_BYTES)
        late_s = backend.send(order.prefix, order.devices, order.count, rate=order.rate, qos=order.qos, payload=payload)
        sent = Sent(started=started, late_ms=late_s * 1_000, cpu_s=time.process_time() - cpu_s)
        print(msgspec.json.encode(sent).decode(), flush=True)


if __name__ == "__main__":
    main()
