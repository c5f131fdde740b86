"""`DeliveryFuture`: what becomes of a message, as a future; and the reader of `inflight.receipts` that ends it."""

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final

from inflight.keywords import checked
from inflight.producer.model import named
from inflight.readers.past_receipts import PastClient, read_past
from inflight.readers.topic_follower import TopicFollower
from sinks.kafka.librdkafka import KafkaFailed
from sinks.library_log import LibraryLogger
from state.errors import InflightError
from state.model import ClientId, MessageId
from state.records.receipts import Receipt, decode_receipt

_RETRY_S: Final = 1.0

_log: Final = LibraryLogger(__name__)


class DeliveryUnknown(InflightError):
    """This process does not wait for the receipt any more; the message is not affected. Ask again with `Producer.delivery`."""


class DeliveryFuture:
    """The outcome of one message for one client: `result()`, `await`, or a callback.

    Attributes:
        client_id, message_id: With them `Producer.delivery` finds the outcome again, in any process.
    """

    def __init__(self, client_id: ClientId, message_id: MessageId) -> None:
        self.client_id: Final = client_id
        self.message_id: Final = message_id
        self._future: Future[Receipt] = Future()
        self._future.set_running_or_notify_cancel()  # nobody cancels what is under way

    def done(self) -> bool:
        """Returns True when `result` does not wait."""
        return self._future.done()

    @checked()
    def result(self, timeout_s: float | None = None) -> Receipt:
        """Waits for the receipt and returns it, whatever the outcome is: `result().outcome == "delivered"`.

        timeout_s: None = as long as it takes, which may be days for a device that is away.

        Raises TimeoutError (it may still come), SendFailed, DeliveryUnknown.
        """
        try:
            return self._future.result(timeout_s)
        except TimeoutError:
            what = f"{named(self.client_id, self.message_id)} has no receipt after {timeout_s or 0:g} s: it may still come"
            raise TimeoutError(f"{what}. `inflight trace {self.message_id}` says where the message is") from None

    def add_done_callback(self, callback: "Callable[[DeliveryFuture], object]") -> None:
        """Calls it with this object when `result` does not wait any more, on a thread of the reader: keep it short."""
        self._future.add_done_callback(lambda _: callback(self))

    def __await__(self) -> Generator[Any, None, Receipt]:
        return asyncio.wrap_future(self._future).__await__()

    def __repr__(self) -> str:
        return f"DeliveryFuture({self.client_id!r}, {self.message_id!r}, {'done' if self.done() else 'pending'})"

    def _settle(self, outcome: Receipt | BaseException) -> None:
        """Ends it, unless something else has. Called by the objects that made it."""
        with suppress(InvalidStateError):
            if isinstance(outcome, BaseException):
                self._future.set_exception(outcome)
            else:
                self._future.set_result(outcome)


class Deliveries:
    """The deliveries that this process waits for. Reads receipts from the first one on.

    Args:
        most: How many; beyond it the oldest one ends with DeliveryUnknown.
    """

    def __init__(self, topic: str, bootstrap_servers: str, options: Mapping[str, Any], *, most: int) -> None:
        self._topic, self._servers, self._options = topic, bootstrap_servers, options
        self._most = most
        self._lock = threading.Lock()
        self._waiting: dict[tuple[ClientId, MessageId], DeliveryFuture] = {}
        self._asked: list[PastClient] = []
        self._searching: threading.Thread | None = None
        self._stopping = threading.Event()
        self._follower = TopicFollower(topic, bootstrap_servers, options, name="inflight-receipts", handle=self.handle)

    @property
    def is_started(self) -> bool:
        """Returns True when `start` does not wait."""
        return self._follower.is_started

    def start(self) -> None:
        """Begins to read. Waits for Kafka at the first call. Raises KafkaFailed."""
        self._follower.start()

    def expect(self, client_id: ClientId, message_id: MessageId) -> DeliveryFuture:
        """Returns the delivery of a message whose receipt is not written yet. A second one of the same message is the same."""
        with self._lock:
            if self._stopping.is_set():
                raise DeliveryUnknown("the Producer is closed: make a new one, and ask it with `delivery`")
            key = client_id, message_id
            if (known := self._waiting.get(key)) is not None:
                return known
            oldest = None
            if len(self._waiting) >= self._most:
                oldest = self._waiting.pop(next(iter(self._waiting)))
            self._waiting[key] = made = DeliveryFuture(client_id, message_id)
        if oldest is not None:
            text = f"more than {self._most} deliveries are awaited (max_pending_deliveries); ask again with `delivery`"
            oldest._settle(DeliveryUnknown(text))
        return made

    def search(self, client_id: ClientId, message_id: MessageId, *, within_s: float) -> DeliveryFuture:
        """Returns the delivery of a message whose receipt may be written already, within the last `within_s` seconds."""
        self.start()
        made = self.expect(client_id, message_id)
        with self._lock:
            self._asked.append(PastClient(client_id, int((time.time() - within_s) * 1_000)))
            if self._searching is None:
                self._searching = threading.Thread(target=self._search, name="inflight-past-receipts", daemon=True)
                self._searching.start()
        return made

    def forget(self, delivery: DeliveryFuture, reason: BaseException) -> None:
        """Ends a delivery that nothing will end."""
        with self._lock:
            self._waiting.pop((delivery.client_id, delivery.message_id), None)
        delivery._settle(reason)

    def handle(self, message: Any) -> None:
        """Ends the delivery that a record of receipts is about. Raises UnreadableRecord."""
        receipt = decode_receipt(message.value() or b"")
        with self._lock:
            found = self._waiting.pop((receipt.client_id, receipt.message_id), None)
        if found is not None:
            found._settle(receipt)

    def close(self) -> None:
        """Ends the reader, and every delivery with DeliveryUnknown."""
        with self._lock:
            self._stopping.set()
            left = list(self._waiting.values())
            self._waiting.clear()
        for delivery in left:
            delivery._settle(DeliveryUnknown("the Producer was closed before the receipt came; ask again with `delivery`"))
        self._follower.close()
        if (searching := self._searching) is not None:
            searching.join(2.0)

    def _search(self) -> None:
        """Reads past receipts for all requests, in as few passes over the topic as possible. Ends when no request is left."""
        while not self._stopping.is_set():
            with self._lock:
                asked, self._asked = self._asked, []
                if not asked:
                    self._searching = None
                    return
            try:
                read_past(
                    self._topic,
                    self._servers,
                    self._options,
                    asked,
                    handle=self._handle_past,
                    is_stopping=self._stopping.is_set,
                )
            except KafkaFailed as error:
                _log.warning("past_receipts_not_read", error=str(error), action="trying again")
                with self._lock:
                    self._asked += asked
                self._stopping.wait(_RETRY_S)

    def _handle_past(self, message: Any) -> None:
        try:
            self.handle(message)
        except InflightError as error:
            _log.warning("record_skipped", topic=self._topic, offset=message.offset(), error=str(error))
