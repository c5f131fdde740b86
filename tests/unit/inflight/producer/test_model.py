"""The texts of errors say what was the matter, and what to do."""

import pytest
from prometheus_client import CollectorRegistry

from inflight import Producer, SendFailed
from inflight.producer.deliveries import DeliveryFuture
from inflight.producer.model import Attempt, Cause, SendFuture


def test_a_failed_send_names_the_last_cause_that_is_known() -> None:
    attempts = (Attempt(1, 2, Cause.NETWORK, "connection lost"), Attempt(3, 4, Cause.THROTTLED, "530 TOO_MANY_REQUESTS: queue"))
    failure = SendFailed("its deadline passed (2 attempts)", client_id="c", message_id="m", attempts=attempts)
    assert "its deadline passed (2 attempts); the last cause: 530 TOO_MANY_REQUESTS: queue.\n" in str(failure)
    told = SendFailed(
        "all 1 attempts failed, the last one: lost",
        client_id="",
        message_id="m",
        attempts=(Attempt(1, 2, Cause.NETWORK, "lost"),),
    )
    assert str(told).startswith("publication 'm' was not sent: all 1 attempts failed, the last one: lost.\n")


def test_a_send_without_a_broker_says_why_none_was_reached() -> None:
    with Producer("127.0.0.1:1", registry=CollectorRegistry()) as producer, pytest.raises(SendFailed) as error:
        producer.send("c", "t", b"x", timeout_s=2)
    first = str(error.value).splitlines()[0]
    assert (
        "its deadline passed (1 attempts); the last cause: not confirmed before the deadline of the send (127.0.0.1:1: " in first
    )


def test_a_future_that_is_not_done_in_time_says_of_which_message() -> None:
    future = SendFuture("message 'm' for client 'c'")
    for wait in (future.result, future.exception):
        with pytest.raises(
            TimeoutError, match=r"message 'm' for client 'c' is neither confirmed nor refused after 0.01 s: it is still"
        ):
            wait(0.01)
    delivery = DeliveryFuture("c", "m")
    with pytest.raises(
        TimeoutError, match=r"message 'm' for client 'c' has no receipt after 0 s: it may still come. `inflight trace m`"
    ):
        delivery.result(0)
