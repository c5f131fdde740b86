"""Requests to devices: a message, and the publication with which the device answers, found in `inflight.uplink`.

A device of MQTT 5 answers to the response topic with the correlation data. A device of MQTT 3.1.1 sees neither, so the topics say
it: a request to `TOPIC/request/ID` is answered on `TOPIC/response/ID`.
"""

import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final, NamedTuple

from inflight.producer.deliveries import DeliveryFuture
from inflight.producer.model import InvalidMessage
from inflight.readers.topic_follower import TopicFollower
from inflight.readers.uplink import UplinkMessage, uplink_message
from state.errors import InflightError
from state.model import ClientId, Outcome
from state.records.receipts import Receipt

REQUEST: Final = "request"
RESPONSE: Final = "response"
_REACHED: Final = (Outcome.DELIVERED, Outcome.SENT)


class RequestFailed(InflightError):
    """There is no response.

    receipt: The outcome of the request's message; None = not known yet. With `delivered` the device has it and has not answered.
    """

    def __init__(self, text: str, receipt: Receipt | None = None) -> None:
        super().__init__(text)
        self.receipt = receipt


class RequestTopics(NamedTuple):
    """The topic of a request, and the one on which its response is expected."""

    topic: str
    response_topic: str


class PendingRequest:
    """A request that waits for its response.

    Attributes:
        request_id: The correlation data, and the last level of the topics if they have it.
        response: Ends with the response, or with RequestFailed if the message died.
    """

    def __init__(self, client_id: ClientId, request_id: str, topics: RequestTopics) -> None:
        self.client_id: Final = client_id
        self.request_id: Final = request_id
        self.topics: Final = topics
        self.response: Future[UplinkMessage] = Future()
        self.response.set_running_or_notify_cancel()
        self._receipt: Receipt | None = None

    def follow(self, delivery: DeliveryFuture) -> None:
        """Ends the request when its message dies."""
        delivery.add_done_callback(self._delivered)

    def late(self, timeout_s: float) -> RequestFailed:
        """Returns the error of a request without a response in time."""
        known = "its message has no receipt yet" if self._receipt is None else f"its message was {self._receipt.outcome}"
        text = (
            f"{self.client_id!r} has not answered within {timeout_s:g} s; {known}. `inflight client` says whether it is connected"
        )
        return RequestFailed(text, self._receipt)

    def settle(self, outcome: UplinkMessage | Exception) -> None:
        """Ends the request, unless something else has: the first response counts."""
        with suppress(InvalidStateError):
            if isinstance(outcome, Exception):
                self.response.set_exception(outcome)
            else:
                self.response.set_result(outcome)

    def _delivered(self, delivery: DeliveryFuture) -> None:
        try:
            self._receipt = receipt = delivery.result(0)
        except InflightError as error:
            self.settle(error)
            return
        if receipt.outcome not in _REACHED:
            text = f"the request did not reach {self.client_id!r}: {receipt.outcome}"
            self.settle(RequestFailed(f"{text} ({receipt.detail})" if receipt.detail else text, receipt))


class Requests:
    """The requests of this process. Reads `inflight.uplink` from the first one on."""

    def __init__(self, topic: str, bootstrap_servers: str, options: Mapping[str, Any]) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, PendingRequest] = {}
        self._clients: dict[bytes, int] = {}
        """How many requests wait for each client: a record of any other one is not decoded."""
        self._follower = TopicFollower(topic, bootstrap_servers, options, name="inflight-responses", handle=self.handle)

    def __len__(self) -> int:
        """Returns how many wait for their response."""
        return len(self._waiting)

    @property
    def is_started(self) -> bool:
        """Returns True when `start` does not wait."""
        return self._follower.is_started

    def start(self) -> None:
        """Begins to read. Waits for Kafka at the first call. Raises KafkaFailed."""
        self._follower.start()

    def begin(self, client_id: ClientId, topic: str, *, response_topic: str | None, id_in_topic: bool) -> PendingRequest:
        request_id = uuid.uuid4().hex
        topics = request_topics(topic, request_id, response_topic=response_topic, id_in_topic=id_in_topic)
        made = PendingRequest(client_id, request_id, topics)
        key = client_id.encode()
        with self._lock:
            self._waiting[request_id] = made
            self._clients[key] = self._clients.get(key, 0) + 1
        return made

    def end(self, request: PendingRequest) -> None:
        """Forgets a request. May be called twice."""
        key = request.client_id.encode()
        with self._lock:
            if self._waiting.pop(request.request_id, None) is None:
                return
            self._clients[key] -= 1
            if not self._clients[key]:
                del self._clients[key]

    def handle(self, message: Any) -> None:
        """Ends the request that a record of uplink answers."""
        if message.key() not in self._clients:
            return
        read = uplink_message(message)
        correlation = (read.properties.correlation_data or b"").decode(errors="replace")
        request = self._waiting.get(correlation) or self._waiting.get(_id_in(read.topic))
        if request is not None and request.client_id == read.client_id:
            request.settle(read)

    def close(self) -> None:
        with self._lock:
            left = list(self._waiting.values())
        for request in left:
            request.settle(RequestFailed("the Producer was closed before the response came"))
        self._follower.close()


def request_topics(topic: str, request_id: str, *, response_topic: str | None, id_in_topic: bool) -> RequestTopics:
    """Returns the topics of a request.

    Args:
        topic: As the backend gives it.
        response_topic: None = `TOPIC/response`.
        id_in_topic: True = `TOPIC/request/ID` and `TOPIC/response/ID`, for devices of MQTT 3.1.1.

    Raises:
        InvalidMessage: Both are given.
    """
    if id_in_topic and response_topic is not None:
        raise InvalidMessage("response_topic and id_in_topic are given: with id_in_topic the response topic is TOPIC/response/ID")
    if id_in_topic:
        return RequestTopics(f"{topic}/{REQUEST}/{request_id}", f"{topic}/{RESPONSE}/{request_id}")
    return RequestTopics(topic, response_topic or f"{topic}/{RESPONSE}")


def _id_in(topic: str) -> str:
    before, _, last = topic.rpartition("/")
    return last if before.endswith(f"/{RESPONSE}") else ""
