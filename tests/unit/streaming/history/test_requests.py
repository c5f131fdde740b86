"""Requests of operators: the ledger has them first, with the one who asks."""

import msgspec
import pytest

from state.events import DropRequested, RestoreRequested, SessionPurged
from state.records.events import decode_events
from state.records.ledger import LedgerRow
from streaming.config.settings import Settings
from streaming.history.requests import SessionRequest, send_requests

TOPICS = Settings().topics
BY = "anna on machine-1"


class FakeProducer:
    """Remembers (topic, key, value) in order; fails to confirm the records of `fails`."""

    def __init__(self, fails: str = "") -> None:
        self.sent: list[tuple[str, bytes, bytes]] = []
        self._fails = fails

    def send(self, topic: str, *, key: bytes, value: bytes) -> "FakeProducer":
        self.sent.append((topic, key, value))
        return self

    def get(self, timeout: float) -> None:
        assert timeout > 0
        if self.sent[-1][0] == self._fails:
            raise TimeoutError


@pytest.mark.promise("operator-request")
def test_the_ledger_has_the_request_before_the_engine() -> None:
    producer = FakeProducer()
    assert send_requests(producer, TOPICS, ["c1", "c2"], SessionPurged(), by=BY) == 2
    assert [(topic, key) for topic, key, _ in producer.sent] == [
        (TOPICS.ledger, b"c1"),
        (TOPICS.ledger, b"c2"),
        (TOPICS.events, b"c1"),
        (TOPICS.events, b"c2"),
    ]
    assert decode_events(producer.sent[-1][2]) == (SessionPurged(),)


def test_a_request_without_a_record_of_who_asks_is_not_sent() -> None:
    producer = FakeProducer(fails=TOPICS.ledger)
    with pytest.raises(TimeoutError):
        send_requests(producer, TOPICS, ["c1"], SessionPurged(), by=BY)
    assert [topic for topic, *_ in producer.sent] == [TOPICS.ledger]


@pytest.mark.parametrize(
    ("request_", "why", "detail"),
    [
        (SessionPurged(), "queued > 5", f"purge by {BY}: where queued > 5"),
        (RestoreRequested(), "", f"restore by {BY}"),
        (DropRequested(), "", f"drop by {BY}"),
    ],
)
def test_the_row_says_what_was_asked_by_whom_and_why(request_: SessionRequest, why: str, detail: str) -> None:
    producer = FakeProducer()
    send_requests(producer, TOPICS, ["c1"], request_, by=BY, why=why)
    (row,) = msgspec.json.decode(producer.sent[0][2], type=list[LedgerRow])
    assert (row.client_id, row.transition, row.detail) == ("c1", "operator_request", detail)
    assert row.time_ms > 1_700_000_000_000
