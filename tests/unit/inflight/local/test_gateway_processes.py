import os

import pytest

from inflight.local.gateway_processes import metrics_port, process_count
from streaming.config.settings import Settings


@pytest.mark.parametrize(
    ("wanted", "partitions", "count"), [(1, 8, 1), ("3", 8, 3), ("auto", 1, 1), ("auto", 999, os.cpu_count())]
)
def test_auto_is_one_process_for_each_processor_or_partition(wanted: object, partitions: int, count: int) -> None:
    settings = Settings(gateway={"processes": wanted}, topics={"partitions": {"commands": partitions}})
    assert process_count(settings) == count


def test_each_process_has_a_metrics_port_of_its_own() -> None:
    assert [metrics_port(9_462, number) for number in (1, 2, 3)] == [9_462, 9_463, 9_464]
    assert [metrics_port(port, 3) for port in (0, -1)] == [0, -1]
