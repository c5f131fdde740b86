"""Sends a message, waits for what becomes of it, and asks again by its id, as after a restart (docs/guides/backend.md).

python examples/deliver.py [KAFKA]
"""

import sys

from inflight import Producer

KAFKA = sys.argv[1] if len(sys.argv) > 1 else None

with Producer(KAFKA) as producer:
    delivery = producer.deliver("lamp-1", "commands/switch", b"on", qos=2, expiration_ms=60_000)
    receipt = delivery.result(timeout_s=120)
    print("it was", receipt.outcome, "after", receipt.outcome_ms - receipt.accepted_ms, "ms and", receipt.attempts, "attempts")

# The id is all that a backend has to remember. Another process finds the outcome, whether the receipt is there or still comes.
with Producer(KAFKA) as producer:
    again = producer.delivery("lamp-1", delivery.message_id)
    print("it was", again.result(timeout_s=120).outcome)
