"""streaming.engine.kafka_access: what the first record of an engine says of its clock."""

from typing import Any

import pytest
from kafka.errors import InvalidTimestampError

from streaming.config.settings import Settings
from streaming.engine import kafka_access
from streaming.engine.errors import EngineClockOff
from streaming.engine.kafka_access import require_right_clock, write_wake_up


class RefusingProducer:
    """Kafka refuses the time of each record, as it does in a topic with CreateTime for a writer who is an hour ahead."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def send(self, **record: Any) -> "RefusingProducer":
        return self

    def get(self, timeout: float) -> None:
        raise InvalidTimestampError

    def close(self, timeout: float | None = None) -> None:
        pass


def test_a_refused_time_is_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_access, "KafkaProducer", RefusingProducer)
    monkeypatch.setattr(kafka_access, "abandon", RefusingProducer.close)
    with pytest.raises(EngineClockOff, match=r"refuses the time of this machine's records; set the clock.*inflight topics"):
        write_wake_up(Settings())


@pytest.mark.parametrize("skew_s", [0.0, 299.0, -299.0])
def test_a_clock_that_is_nearly_right_is_good_enough_to_start(skew_s: float) -> None:
    require_right_clock(skew_s)


@pytest.mark.parametrize(("skew_s", "text"), [(301.0, "301 s ahead of"), (-864_000.0, "10.0 days behind")])
def test_an_engine_whose_clock_is_far_off_does_not_start(skew_s: float, text: str) -> None:
    with pytest.raises(EngineClockOff, match=f"^the clock is {text} that of Kafka's brokers.*Nothing has been changed"):
        require_right_clock(skew_s)
