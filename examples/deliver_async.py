"""Sends a hundred messages at once with asyncio, and waits for their outcomes (docs/guides/backend.md).

python examples/deliver_async.py [KAFKA]
"""

import asyncio
import sys
from collections import Counter

from inflight import AsyncProducer, Receipt

KAFKA = sys.argv[1] if len(sys.argv) > 1 else None


async def switch(producer: AsyncProducer, number: int) -> Receipt:
    delivery = await producer.deliver("lamp-1", "commands/level", b"%d" % number)
    return await delivery


async def main() -> None:
    async with AsyncProducer(KAFKA) as producer:
        receipts = await asyncio.gather(*(switch(producer, number) for number in range(100)))
    print(dict(Counter(str(receipt.outcome) for receipt in receipts)))


asyncio.run(main())
