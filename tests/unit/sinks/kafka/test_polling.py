"""A consumer of a group stays the same while its broker is away."""

from typing import Any

import pytest
from kafka.errors import FencedInstanceIdError, KafkaConnectionError

from sinks.kafka import polling
from sinks.kafka.polling import poll


class Consumer:
    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)

    def poll(self, timeout_ms: int) -> Any:
        assert timeout_ms == 200
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def test_a_broker_that_is_away_brings_nothing_and_the_next_poll_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "_WITHOUT_BROKER_S", 0.0)
    consumer = Consumer(KafkaConnectionError("111 ECONNREFUSED"), {"partition": ["record"]})
    assert poll(consumer, 200) == {}
    assert poll(consumer, 200) == {"partition": ["record"]}


def test_every_other_error_is_one() -> None:
    with pytest.raises(FencedInstanceIdError):
        poll(Consumer(FencedInstanceIdError("another one")), 200)
