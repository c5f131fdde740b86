"""Reads what became of messages: those that devices did not get (docs/guides/backend.md).

python examples/receipts.py [KAFKA]
"""

import sys

from inflight import Outcome, Receipts

KAFKA = sys.argv[1] if len(sys.argv) > 1 else None

with Receipts(KAFKA, group="alarms", outcomes=[Outcome.EXPIRED, Outcome.REJECTED]) as receipts:
    for receipt in receipts:
        print(receipt.message_id, "for", receipt.client_id, receipt.outcome, receipt.detail)
        if receipt.client_id == "lamp-away":
            receipts.stop()
