"""A receipt ends its delivery, and other things end those without one."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from inflight.producer.deliveries import Deliveries, DeliveryUnknown
from state.model import Outcome
from state.records.receipts import Receipt


def record(client_id: str, message_id: str, outcome: Outcome = Outcome.DELIVERED) -> Any:
    receipt = Receipt(
        message_id=message_id, client_id=client_id, outcome=outcome, reason_code=0, attempts=1, accepted_ms=1, first_sent_ms=2,
        outcome_ms=3, recorded_ms=4, detail="", final=True, destinations=(), deaths=0, correlation_data=None, fast_path=False,
        traceparent=None,
    )  # fmt: skip
    value = msgspec.json.encode(receipt)
    return SimpleNamespace(value=lambda: value, offset=lambda: 0)


def deliveries(most: int = 10) -> Deliveries:
    return Deliveries("inflight.receipts", "nowhere:1", {}, most=most)


@pytest.mark.promise("deliveries")
def test_the_receipt_of_this_client_and_message_ends_a_delivery() -> None:
    awaited = deliveries()
    one, other = awaited.expect("lamp", "m"), awaited.expect("lamp-2", "m")
    assert awaited.expect("lamp", "m") is one
    called: list[object] = []
    one.add_done_callback(called.append)
    awaited.handle(record("lamp", "else"))
    assert not one.done()
    awaited.handle(record("lamp", "m", Outcome.EXPIRED))
    awaited.handle(record("lamp", "m"))
    assert (one.result(0).outcome, other.done(), called) == (Outcome.EXPIRED, False, [one])
    assert repr(one) == "DeliveryFuture('lamp', 'm', done)"
    assert asyncio.run(outcome_of(one)) == Outcome.EXPIRED


async def outcome_of(delivery: Any) -> str:
    return (await delivery).outcome


def test_a_delivery_does_not_wait_longer_than_it_is_told() -> None:
    with pytest.raises(TimeoutError):
        deliveries().expect("lamp", "m").result(0)


def test_beyond_the_limit_the_oldest_delivery_is_given_up() -> None:
    awaited = deliveries(most=2)
    first, second, _ = (awaited.expect("lamp", name) for name in "abc")
    with pytest.raises(DeliveryUnknown, match="max_pending_deliveries"):
        first.result(0)
    assert not second.done()


def test_the_end_of_the_producer_ends_every_delivery() -> None:
    awaited = deliveries()
    delivery = awaited.expect("lamp", "m")
    awaited.close()
    with pytest.raises(DeliveryUnknown, match="ask again"):
        delivery.result(0)
    with pytest.raises(DeliveryUnknown):
        awaited.expect("lamp", "m")
