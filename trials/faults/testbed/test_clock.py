"""trials/faults/testbed/clock.py: one process has another time, and its monotonic clock and its waits do not know."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trials.faults.testbed.clock import Clock

ROUNDING_S = 60.0
PROGRAM = """
import json, sys, time
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "clock", "log_level": 0})
while line := sys.stdin.readline():
    began_s = time.monotonic()
    consumer.poll(0.2)
    print(json.dumps([time.time(), time.time_ns() / 1e9, time.monotonic(), time.monotonic() - began_s]), flush=True)
"""


@pytest.mark.faults
@pytest.mark.timeout(60)
def test_the_wall_clock_of_a_process_jumps_but_not_its_monotonic_one(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "gateway a.clock")
    environment = {**os.environ, **clock.environment}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for step_s in 0.0, 7_200.0, -864_000.0, 864_000.0, 0.0:
            clock.step(step_s)
            child.stdin.write("\n")
            child.stdin.flush()
            wall_s, wall_ns_s, monotonic_s, waited_s = json.loads(child.stdout.readline())
            assert wall_s - time.time() == pytest.approx(step_s, abs=ROUNDING_S)
            assert wall_ns_s == pytest.approx(wall_s, abs=ROUNDING_S)
            assert monotonic_s == pytest.approx(time.monotonic(), abs=ROUNDING_S)
            assert 0.1 < waited_s < ROUNDING_S, "librdkafka's own waits end in time"
        child.stdin.close()
