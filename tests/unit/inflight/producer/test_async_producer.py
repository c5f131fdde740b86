"""An AsyncProducer whose caller gives up keeps nothing of the call. With a broker: tests/integration/up/test_backend.py."""

import asyncio
import threading

import pytest

from inflight.producer.async_producer import AsyncProducer
from tests.support.waiting import until

NOWHERE = "127.0.0.1:1"
WITHIN_S = 60.0


def test_a_request_that_is_cancelled_while_it_is_sent_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    async def run() -> None:
        async with AsyncProducer(NOWHERE) as producer:
            requests = producer._producer._requests

            def start() -> None:
                begun.set()
                assert may_go_on.wait(WITHIN_S)

            monkeypatch.setattr(requests, "start", start)
            asking = asyncio.create_task(producer.request("lamp", "get", b""))
            await until(begun.is_set, "it is sent in a thread")
            assert len(requests) == 1
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            may_go_on.set()
            assert len(requests) == 0

    asyncio.run(run())
