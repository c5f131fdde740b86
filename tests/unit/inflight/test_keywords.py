"""A keyword argument that is mistyped is named, with the one that was meant, before anything is sent."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from inflight import AsyncProducer, DeliveryFuture, Presence, Producer, Receipts, Uplink
from inflight.producer.transaction import Transaction

NOWHERE = "127.0.0.1:1"
TO_ONE = ("send", "send_async", "deliver", "deliver_async", "request")
PUBLISHED = ("publish", "publish_async")
Call = Callable[[Producer], Any]


@pytest.mark.parametrize("name", [*TO_ONE, "send_many"])
def test_a_mistyped_argument_names_the_right_one(name: str) -> None:
    with Producer(NOWHERE, registry=CollectorRegistry()) as producer:
        with pytest.raises(TypeError, match=rf"Producer.{name} has no argument 'paylod': did you mean 'payload'\?"):
            getattr(producer, name)("c", "t", paylod=b"x")
        with pytest.raises(TypeError, match=rf"Producer.{name} has no argument 'expiration': did you mean 'expiration_ms'\?"):
            getattr(producer, name)("c", "t", b"x", expiration=5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_publication_is_checked_by_its_own_arguments(name: str) -> None:
    with Producer(NOWHERE, registry=CollectorRegistry()) as producer:
        with pytest.raises(TypeError, match=rf"Producer.{name} has no argument 'retian': did you mean 'retain'\?"):
            getattr(producer, name)("t", b"x", retian=True)
        with pytest.raises(TypeError, match=rf"Producer.{name} has no argument 'zzz': it has bcc, cc, "):
            getattr(producer, name)("t", b"x", zzz=True)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda producer: producer.cancel("c", "m", timeout=1), "cancel has no argument 'timeout': did you mean 'timeout_s'?"),
        (lambda producer: producer.delivery("c", "m", within=1), "delivery has no argument 'within': did you mean 'within_s'?"),
        (lambda producer: producer.send_many([{"client": "c"}]), "has no argument 'client': did you mean 'client_id'?"),
        (lambda producer: Transaction.send(None, "c", "t", b"", qoss=1), "has no argument 'qoss': did you mean 'qos'?"),
    ],
)
def test_every_other_method_names_the_right_argument_too(call: Call, text: str) -> None:
    with Producer(NOWHERE, registry=CollectorRegistry()) as producer, pytest.raises(TypeError) as error:
        call(producer)
    assert str(error.value).endswith(text)


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
def test_a_mistyped_setting_names_the_right_one(kind: type) -> None:
    with pytest.raises(TypeError, match=r"Producer has no argument 'max_atempts': did you mean 'max_attempts'\?"):
        kind(NOWHERE, max_atempts=5)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Uplink(NOWHERE, group="g", topic="a"), "Uplink has no argument 'topic': did you mean 'topics'?"),
        (lambda: Receipts(NOWHERE, group="g", outcome=()), "Receipts has no argument 'outcome': did you mean 'outcomes'?"),
        (lambda: Presence(NOWHERE, timeout=1), "Presence has no argument 'timeout': did you mean 'timeout_s'?"),
        (lambda: Presence.changes(None, timeout=1), "Presence.changes has no argument 'timeout': did you mean 'timeout_s'?"),
        (lambda: Uplink.batches(None, within=1), "batches has no argument 'within': did you mean 'within_s'?"),
        (lambda: DeliveryFuture.result(None, timeout=1), "result has no argument 'timeout': did you mean 'timeout_s'?"),
        (lambda: Producer.transaction(None, timeout=1), "transaction has no argument 'timeout': did you mean 'timeout_s'?"),
        (lambda: Producer.close(None, timeout=1), "close has no argument 'timeout': did you mean 'timeout_s'?"),
    ],
)
def test_readers_and_futures_name_the_right_argument(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value).endswith(text)


@pytest.mark.parametrize("name", ["send", "deliver", "request"])
def test_an_async_producer_names_the_right_argument(name: str) -> None:
    async def run() -> None:
        async with AsyncProducer(NOWHERE, registry=CollectorRegistry()) as producer:
            await getattr(producer, name)("c", "t", paylod=b"x")

    with pytest.raises(TypeError, match=rf"AsyncProducer.{name} has no argument 'paylod': did you mean 'payload'\?"):
        asyncio.run(run())
