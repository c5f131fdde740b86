"""`AsyncProducer`: the Producer for asyncio.

async with AsyncProducer("127.0.0.1:9092") as producer:
    await producer.send("thermostat-7", "commands/target", b"21.5")
    receipt = await (await producer.deliver("thermostat-7", "commands/target", b"21.5"))
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from inflight.keywords import checked
from inflight.producer.deliveries import DeliveryFuture
from inflight.producer.model import SendResult
from inflight.producer.producer import Producer
from inflight.readers.uplink import UplinkMessage
from state.model import ClientId, MessageId

T = TypeVar("T")


class AsyncProducer:
    """A `Producer` whose methods are awaited; arguments, results and errors are the same. Make one for a process and keep it.

    No message has a thread: librdkafka's threads end the futures. The event loop waits for a thread only at the first `deliver`,
    `delivery` or `request`, and while a send waits for room (`max_pending_messages`, `max_pending_bytes`).
    """

    def __init__(self, bootstrap_servers: str | None = None, **options: Any) -> None:
        self._producer = Producer(bootstrap_servers, **options)

    @checked(Producer.send)
    async def send(self, client_id: ClientId, topic: str, payload: bytes | str, **options: Any) -> SendResult:
        """Sends one message, and waits until all in-sync replicas of Kafka have it (`Producer.send`)."""
        begin = partial(self._producer.send_async, client_id, topic, payload, **options)
        return await asyncio.wrap_future(await self._begun(begin))

    @checked()
    async def cancel(self, client_id: ClientId, message_id: MessageId, *, timeout_s: float | None = None) -> SendResult:
        """Takes a message back that was not sent to the client yet (`Producer.cancel`)."""
        begin = partial(self._producer.cancel_async, client_id, message_id, timeout_s=timeout_s)
        return await asyncio.wrap_future(await self._begun(begin))

    @checked(Producer.publish)
    async def publish(self, topic: str, payload: bytes | str, **options: Any) -> SendResult:
        """Publishes to every client that subscribes to the topic (`Producer.publish`)."""
        return await asyncio.wrap_future(await self._begun(partial(self._producer.publish_async, topic, payload, **options)))

    @checked(Producer.send)
    async def send_many(
        self, messages: Iterable[Mapping[str, Any]] | Iterable[ClientId], *arguments: Any, **options: Any
    ) -> list[SendResult]:
        """Sends many messages in a thread, and waits for all (`Producer.send_many`)."""
        return await asyncio.to_thread(partial(self._producer.send_many, messages, *arguments, **options))

    @checked(Producer.send)
    async def deliver(
        self, client_id: ClientId, topic: str, payload: bytes | str, *, timeout_s: float | None = None, **options: Any
    ) -> DeliveryFuture:
        """Sends one message, and returns the future of its outcome, which can be awaited (`Producer.deliver`)."""
        begin = partial(self._producer._begin_delivery, client_id, topic, payload, timeout_s, options)
        sent, delivery = await self._begun(begin, is_reading=self._producer.reads_receipts)
        await asyncio.wrap_future(sent)
        return delivery

    @checked()
    async def delivery(self, client_id: ClientId, message_id: MessageId, *, within_s: float = 86_400.0) -> DeliveryFuture:
        """Returns the future of a message that was sent before (`Producer.delivery`)."""
        begin = partial(self._producer.delivery, client_id, message_id, within_s=within_s)
        return await self._begun(begin, is_reading=self._producer.reads_receipts)

    @checked(Producer.send)
    async def request(
        self,
        client_id: ClientId,
        topic: str,
        payload: bytes | str,
        *,
        timeout_s: float = 30.0,
        response_topic: str | None = None,
        id_in_topic: bool = False,
        **options: Any,
    ) -> UplinkMessage:
        """Sends a message that asks the device for an answer, and returns the answer (`Producer.request`)."""
        requests = self._producer._requests
        request = requests.begin(client_id, topic, response_topic=response_topic, id_in_topic=id_in_topic)
        send = partial(self._producer._send_request, request, payload, timeout_s, options)
        try:
            await self._begun(send, is_reading=self._producer.reads_responses)
            try:
                return await asyncio.wait_for(asyncio.wrap_future(request.response), timeout_s)
            except TimeoutError:
                raise request.late(timeout_s) from None
        finally:
            requests.end(request)

    def throttled(self, client_id: ClientId) -> str | None:
        """Says why this client is throttled now; None = it is not (`Producer.throttled`)."""
        return self._producer.throttled(client_id)

    async def close(self, timeout_s: float = 10.0) -> None:
        """Waits up to timeout_s for what is under way. Every future has ended when this returns."""
        await asyncio.to_thread(self._producer.close, timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _begun(self, begin: Callable[[], T], *, is_reading: bool = True) -> T:
        """Returns what `begin` returns. It is called in a thread if it may wait."""
        if is_reading and self._producer.has_room:
            return begin()
        return await asyncio.to_thread(begin)
