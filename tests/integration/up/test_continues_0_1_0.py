"""The data of 0.1.0, checkpoint and Kafka log, is continued by this version: nothing lost, nothing twice, the same packet ids.

What conftest.py starts `inflight up` on was left by 0.1.0 with sessions in every state. Its engine was stopped first, so
a micro-batch that it had begun is executed again, and records that it never read wait in the log.
"""

from collections.abc import Iterator

import pytest

from tests.integration.up.conftest import SharedUp
from tests.integration.up.continued_session import (
    comes_again_with_dup_and_the_same_packet_ids,
    comes_in_order_and_once,
    device,
    is_known_and_handed_on_once,
    is_released_and_not_sent_again,
)
from tests.integration.up.fixtures.written import QUEUED, UNREAD
from tests.integration.up.wire_device import Backend

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def backend(up: SharedUp) -> Iterator[Backend]:
    with Backend(up.kafka) as made:
        yield made


def test_what_was_not_acknowledged_comes_again_with_dup_and_the_same_packet_ids(up: SharedUp, backend: Backend) -> None:
    comes_again_with_dup_and_the_same_packet_ids(up.mqtt, backend)


def test_what_was_received_but_not_completed_is_released_and_not_sent_again(up: SharedUp, backend: Backend) -> None:
    is_released_and_not_sent_again(up.mqtt, backend)


def test_a_publication_that_awaits_its_release_is_known_and_handed_on_once(up: SharedUp, backend: Backend) -> None:
    is_known_and_handed_on_once(up.mqtt, backend, published=[b"up-half", b"up-next"])


def test_what_waited_in_the_queue_and_in_the_log_comes_in_order(up: SharedUp, backend: Backend) -> None:
    comes_in_order_and_once(up.mqtt, backend, "queue", [*QUEUED, *UNREAD])


def test_what_was_delivered_is_not_delivered_again(up: SharedUp, backend: Backend) -> None:
    with device(up.mqtt, "done") as again:
        (unread,) = [again.receive()]
        assert (unread.payload, unread.dup) == (b"unread", False)
        again.finish(unread)
    assert backend.outcomes(["done/a", "done/b", "done/unread"]) == ["delivered"] * 3
