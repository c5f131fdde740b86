"""sinks.mqtt.process. With sockets: tests/integration/gateway."""

from types import SimpleNamespace
from typing import Any

from sinks.kafka.partitioning import partition_of
from sinks.kafka.throttles import ThrottleTable
from sinks.mqtt.process import _waits
from state.records.throttle import encode_throttle, partition_key


def test_a_device_waits_with_the_partition_of_its_publications() -> None:
    table = ThrottleTable()
    matcher: Any = SimpleNamespace(throttles=table)
    keys = {partition_of(key, 4): key for key in (b"%d" % number for number in range(50))}
    assert not _waits(matcher, lambda topic: 4, "uplink", keys[1])
    table.apply(partition_key("uplink", 1).encode(), encode_throttle("it waits", 1, is_progressing=True))
    assert [_waits(matcher, lambda topic: 4, "uplink", keys[number]) for number in range(4)] == [False, True, False, False]
    assert not _waits(None, lambda topic: 4, "uplink", keys[1]), "without routing nothing waits"
