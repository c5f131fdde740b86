"""Measures everything, once or repeatedly, for `status` and `top`."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from inflight.local.engine_addresses import standby_addresses
from inflight.status.measurements import KafkaStatus, Measurements, SessionTotals, Thresholds, with_stall, with_standbys
from inflight.status.probes import metrics_addresses, probe_kafka, probe_process
from inflight.status.sessions import NO_ENGINE, totals_from_metrics, totals_of_engine
from state.errors import InflightError
from streaming.config.settings import Settings
from streaming.engine.lifecycle.losses import Losses
from streaming.engine.watching.dropped_messages import DroppedMessages
from streaming.engine.watching.engine_ends import EngineEnds
from streaming.engine.watching.misplaced_records import MisplacedRecords
from streaming.engine.watching.watchdog import Hangs

WORST: Final = 10
_JOIN_S: Final = 15.0


class Observer:
    """Collects measurements. The sessions are read separately, because the engine reads all of them for the answer."""

    def __init__(self, settings: Settings, more_metrics: Sequence[str] = ()) -> None:
        """Stores the settings.

        Args:
            more_metrics: As in `metrics_addresses`.
        """
        self._settings = settings
        self._more_metrics = more_metrics
        self._sessions: SessionTotals | str | None = None
        self._kafka: KafkaStatus | None = None
        self._last_counted: tuple[float, SessionTotals] | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def probe_kafka(self) -> KafkaStatus:
        now = probe_kafka(self._settings)
        self._kafka = now if self._kafka is None else with_stall(self._kafka, now)
        return self._kafka

    def measure(self, kafka: KafkaStatus) -> Measurements:
        """Returns all measurements.

        Args:
            kafka: The result of `probe_kafka`.
        """
        settings = self._settings
        addresses = metrics_addresses(settings, self._more_metrics)
        throttle, read = settings.throttle, self._sessions
        seen = Measurements(
            kafka=kafka,
            limits=Thresholds(
                lag_low=throttle.lag_low,
                lag_high=throttle.lag_high,
                max_mqueue_len=settings.session.max_mqueue_len,
                free_disk_low=throttle.free_disk_low,
                backlog_high=throttle.backlog_high,
            ),
            processes=with_standbys(
                tuple(probe_process(name, address) for name, address in addresses),
                standby_addresses(settings.engine.data_dir),
            ),
            sessions=read if isinstance(read, SessionTotals) else None,
            sessions_error=read if isinstance(read, str) else None,
            hangs=Hangs.read(settings.engine.data_dir),
            ends=EngineEnds.read(settings.engine.data_dir),
            losses=Losses.read(settings.engine.data_dir),
            drops=DroppedMessages.recent(settings.engine.data_dir, time.time()),
            misplaced=MisplacedRecords.recent(settings.engine.data_dir, time.time()),
        )
        return seen if seen.sessions is not None else replace(seen, sessions=self._counted(seen))

    def _counted(self, seen: Measurements) -> SessionTotals | None:
        """Returns the totals of the metrics. An engine that has not counted yet has those of the one before it."""
        now_s = time.monotonic()
        if (counted := totals_from_metrics(seen.engine)) is not None:
            self._last_counted = now_s, counted
        if self._last_counted is None:
            return None
        counted_s, counted = self._last_counted
        aged_s = now_s - counted_s
        oldest_s = None if counted.oldest_s is None else counted.oldest_s + aged_s
        return replace(counted, age_s=counted.age_s + aged_s, oldest_s=oldest_s)

    def read_sessions(self) -> None:
        """Asks the engine for the sessions, once."""
        try:
            self._sessions = totals_of_engine(self._settings, worst=WORST) or NO_ENGINE
        except InflightError as error:
            self._sessions = str(error)

    def start_reading_sessions(self, interval_s: float) -> None:
        """Reads the sessions on a thread, repeatedly, until the end of the `with` block."""
        self._thread = threading.Thread(target=self._run, args=(interval_s,), name="inflight-sessions", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self, interval_s: float) -> None:
        while True:
            self.read_sessions()
            if self._stopping.wait(interval_s):
                return
