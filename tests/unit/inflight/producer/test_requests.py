"""A publication answers the request that it belongs to."""

import pytest

from inflight.producer.deliveries import DeliveryFuture
from inflight.producer.model import InvalidMessage
from inflight.producer.requests import PendingRequest, RequestFailed, Requests, request_topics
from inflight.readers.uplink import UplinkMessage
from state.model import Outcome, PublishProperties, QoS
from state.records.uplink import uplink_headers
from tests.unit.inflight.producer.test_deliveries import deliveries, record
from tests.unit.inflight.readers.kafka_log import StoredRecord


@pytest.fixture
def requests() -> Requests:
    return Requests("inflight.uplink", "nowhere:1", {})


def begin(requests: Requests, client_id: str = "lamp", *, id_in_topic: bool = False) -> PendingRequest:
    return requests.begin(client_id, "get", response_topic=None, id_in_topic=id_in_topic)


def answer(client_id: str, topic: str, correlation: bytes | None = None) -> StoredRecord:
    properties = PublishProperties(correlation_data=correlation)
    headers = uplink_headers(client_id=client_id, inflight_id="1", topic=topic, qos=QoS.AT_LEAST_ONCE, properties=properties)
    return StoredRecord(0, (client_id.encode(), b"21.5", [*headers]))


def response(request: PendingRequest) -> UplinkMessage | None:
    return request.response.result(0) if request.response.done() else None


def test_correlation_data_answers_a_request_of_this_client(requests: Requests) -> None:
    request, other = begin(requests), begin(requests)
    requests.handle(answer("thief", "get/response", request.request_id.encode()))
    requests.handle(answer("lamp", "get/response", b"\xff"))
    requests.handle(answer("lamp", "elsewhere"))
    assert response(request) is None
    requests.handle(answer("lamp", "get/response", request.request_id.encode()))
    requests.handle(answer("lamp", "get/response", request.request_id.encode()))
    found = response(request)
    assert found is not None
    assert (found.payload, response(other)) == (b"21.5", None)


def test_the_topic_answers_a_request_with_its_id(requests: Requests) -> None:
    request = begin(requests, id_in_topic=True)
    assert request.topics.topic == f"get/request/{request.request_id}"
    requests.handle(answer("lamp", f"get/response/{request.request_id}"))
    assert response(request) is not None


def test_an_ended_request_has_no_response(requests: Requests) -> None:
    request = begin(requests)
    requests.end(request)
    requests.end(request)
    requests.handle(answer("lamp", "get/response", request.request_id.encode()))
    assert response(request) is None


def test_the_topics_of_a_request_are_said_once() -> None:
    assert request_topics("get", "7", response_topic="back/7", id_in_topic=False) == ("get", "back/7")
    assert request_topics("get", "7", response_topic=None, id_in_topic=False) == ("get", "get/response")
    with pytest.raises(InvalidMessage, match="response_topic and id_in_topic"):
        request_topics("get", "7", response_topic="back", id_in_topic=True)


def follow(request: PendingRequest, outcome: Outcome) -> DeliveryFuture:
    awaited = deliveries()
    delivery = awaited.expect("lamp", "m")
    request.follow(delivery)
    awaited.handle(record("lamp", "m", outcome))
    return delivery


def test_a_request_ends_when_its_message_dies(requests: Requests) -> None:
    request = begin(requests)
    receipt = follow(request, Outcome.EXPIRED).result(0)
    with pytest.raises(RequestFailed, match="did not reach 'lamp': expired") as failed:
        request.response.result(0)
    assert failed.value.receipt == receipt


def test_a_late_answer_says_what_is_known_of_the_message(requests: Requests) -> None:
    request = begin(requests)
    said = "'lamp' has not answered within 2 s; its message has no receipt yet. `inflight client` says whether it is connected"
    assert str(request.late(2)) == said
    follow(request, Outcome.DELIVERED)
    assert "its message was delivered" in str(request.late(2))


def test_a_closed_producer_has_no_responses(requests: Requests) -> None:
    request = begin(requests)
    requests.close()
    with pytest.raises(RequestFailed, match="closed"):
        request.response.result(0)
