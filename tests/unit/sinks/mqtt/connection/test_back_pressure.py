"""A device that says more than Kafka confirms: it is not read from, and nothing of it is lost."""

import pytest

from sinks.mqtt.limits.unconfirmed import Unconfirmed
from sinks.mqtt.settings import DeviceLimits
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, PINGRESP, Harness, connected


@pytest.mark.promise("more-than-kafka-confirms")
def test_a_connection_stopped_because_of_others_resumes_with_its_buffer() -> None:
    total = Unconfirmed(DeviceLimits(max_total_unconfirmed_appends=4))
    harness = connected(4, keep_alive_s=10, total=total)
    for _ in range(4):
        total.add(1)
    assert harness.send(PINGREQ) == b""
    assert not harness.wants_data
    harness.now_ms += 14_000
    for _ in range(2):
        total.settle(1)
    harness.feed("resume")
    assert harness.settle() == PINGRESP
    assert harness.wants_data
    assert harness.pass_ms(14_000) == b""
    assert not harness.connection.is_closed, "it was not listened to, so it was not silent"
    harness.pass_ms(1_000)
    assert harness.connection.is_closed


def test_the_limit_of_all_connections_holds_before_connect() -> None:
    total = Unconfirmed(DeviceLimits(max_total_unconfirmed_appends=1))
    harness = Harness(total=total)
    total.add(1)
    assert not harness.wants_data
    total.settle(1)
    assert harness.wants_data
