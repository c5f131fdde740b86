"""The data of 0.1.0, checkpoint and Kafka log, is continued by this version: nothing lost, nothing twice, the same packet ids.

What conftest.py starts `inflight up` on was left by 0.1.0 with sessions in every state. Its engine was stopped first, so
a micro-batch that it had begun is executed again, and records that it never read wait in the log.
"""

from collections.abc import Iterator

import pytest

from tests.integration.up.conftest import SharedUp
from tests.integration.up.wire_device import PUBCOMP, PUBREC, PUBREL, Backend, WireDevice, acknowledgement

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

NEVER_EXPIRES_S = 0xFFFF_FFFF
QUEUED = [b"m%d" % number for number in range(20)]
UNREAD = [b"unread-1", b"unread-2"]


@pytest.fixture(scope="module")
def backend(up: SharedUp) -> Iterator[Backend]:
    with Backend(up.kafka) as made:
        yield made


def device(up: SharedUp, client_id: str) -> WireDevice:
    made = WireDevice(up.mqtt, client_id, 5, expiry_s=NEVER_EXPIRES_S)
    assert made.session_present
    return made


def test_what_was_not_acknowledged_comes_again_with_dup_and_the_same_packet_ids(up: SharedUp, backend: Backend) -> None:
    with device(up, "unanswered") as again:
        received = [again.receive(), again.receive()]
        assert [(one.payload, one.qos, one.packet_id, one.dup) for one in received] == [
            (b"q1", 1, 1, True),
            (b"q2", 2, 2, True),
        ]
        for one in received:
            again.finish(one)
        assert backend.outcomes(["unanswered/q1", "unanswered/q2"]) == ["delivered", "delivered"]


def test_what_was_received_but_not_completed_is_released_and_not_sent_again(up: SharedUp, backend: Backend) -> None:
    with device(up, "received") as again:
        again.expect(acknowledgement(PUBREL, 1))
        again.send(acknowledgement(PUBCOMP, 1))
        assert backend.outcome("received/half") == "delivered"


def test_a_publication_that_awaits_its_release_is_known_and_handed_on_once(up: SharedUp, backend: Backend) -> None:
    """Once the fixture is older than `await_rel_timeout`, by its tombstone."""
    with device(up, "publisher") as again:
        again.publish(b"up-half", qos=2, packet_id=7, dup=True)
        again.expect(acknowledgement(PUBREC, 7))
        again.send(acknowledgement(PUBREL, 7))
        again.expect(acknowledgement(PUBCOMP, 7))
        again.publish(b"up-next", qos=2, packet_id=7)
        again.expect(acknowledgement(PUBREC, 7))
    assert backend.uplink("publisher", b"up-next") == [b"up-half", b"up-next"]


def test_what_waited_in_the_queue_and_in_the_log_comes_in_order(up: SharedUp, backend: Backend) -> None:
    with device(up, "queue") as again:
        received = [again.receive() for _ in (*QUEUED, *UNREAD)]
        assert [one.payload for one in received] == [*QUEUED, *UNREAD]
        assert not any(one.dup for one in received)
        for one in received:
            again.finish(one)
    names = [f"queue/{payload.decode()}" for payload in (*QUEUED, *UNREAD)]
    assert backend.outcomes(names) == ["delivered"] * len(names)


def test_what_was_delivered_is_not_delivered_again(up: SharedUp, backend: Backend) -> None:
    with device(up, "done") as again:
        (unread,) = [again.receive()]
        assert (unread.payload, unread.dup) == (b"unread", False)
        again.finish(unread)
    assert backend.outcomes(["done/a", "done/b", "done/unread"]) == ["delivered"] * 3
