"""Sets `time.time` and `time.time_ns` wrong by as many seconds as the file FAULTS_CLOCK says.

Python imports this module before any other if its folder is in PYTHONPATH. The monotonic clocks are unchanged. An injected clock
is needed because libfaketime 0.9.10 does more than that: under it `time.sleep` fails with EINVAL periodically.
"""

import os
import time
from pathlib import Path

_LOOK_S = 0.05
_NS = 1_000_000_000


class _SteppedClock:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._time_ns = time.time_ns
        self._wrong_ns = 0
        self._look_s = 0.0

    def time_ns(self) -> int:
        if time.monotonic() >= self._look_s:
            self._wrong_ns = int(float(self._file.read_text(encoding="ascii")) * _NS)
            self._look_s = time.monotonic() + _LOOK_S
        return self._time_ns() + self._wrong_ns

    def time(self) -> float:
        return self.time_ns() / _NS


if "FAULTS_CLOCK" in os.environ:
    _clock = _SteppedClock(Path(os.environ["FAULTS_CLOCK"]))
    time.time, time.time_ns = _clock.time, _clock.time_ns
