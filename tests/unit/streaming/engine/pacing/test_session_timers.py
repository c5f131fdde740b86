"""streaming.engine.pacing.session_timers: the log, the stored state and both clocks by hand."""

import math
import threading
from collections.abc import Callable, Iterable
from typing import cast

import pytest
from kafka.errors import KafkaError, KafkaTimeoutError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from structlog.testing import capture_logs

from state.events import DeadlineReached
from state.model import ClientId
from state.records.events import WAKE_UP_KEY, decode_events
from streaming.engine.kafka_access import TopicLog
from streaming.engine.operator.reported_deadlines import Reports, Timer
from streaming.engine.pacing import session_timers
from streaming.engine.pacing.deadline_index import HORIZON_MS, SLOT_MS, DeadlineIndex
from streaming.engine.pacing.session_timers import RESTORE_S, SessionTimers
from tests.support.waiting import DEADLINE_S, wait_until

BEGAN_MS = 1_000_000
PAUSE_MS = 2_000
WAKE_UP = (WAKE_UP_KEY, b"")


class TimersHarness:
    """passed_ms: time on both clocks. appended: key, value and time of each record. meanwhile: runs in an append, at its end."""

    def __init__(self, *, limit: int = 0, pause_ms: int = 10**9, timers: type[SessionTimers] = SessionTimers) -> None:
        self.passed_ms = 0
        self.appended: list[tuple[bytes, bytes, int]] = []
        self.stored: list[tuple[ClientId, Timer]] = []
        self.reads_ms: list[int] = []
        self.until_ms: list[int] = []
        self.read_takes_ms = 0
        self.during_read: Callable[[], None] = lambda: None
        self.meanwhile: Callable[[], None] = lambda: None
        self.failing = False
        self.append_error: Exception = KafkaTimeoutError("away")
        self.read_error: Exception | None = None
        self.hurried: list[int] = []
        """The number of appended records at each call of `hurry`."""
        self.cancelled = threading.Event()
        self.closed = False
        self.timers = timers(
            DeadlineIndex(limit),
            cast(TopicLog, self),
            self.read_stored,
            lambda: BEGAN_MS + self.passed_ms,
            longest_pause_ms=pause_ms,
            hurry=lambda: self.hurried.append(len(self.appended)),
            cancel=self.cancelled.set,
            monotonic_s=lambda: self.passed_ms / 1_000,
        )

    # TopicLog
    def append(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        found = [(key, value, self.passed_ms) for key, value in records]
        self.meanwhile()
        if self.failing:
            raise self.append_error
        self.appended += found

    def close(self) -> None:
        self.closed = True

    # the engine
    def read_stored(self, until_ms: int) -> Iterable[tuple[ClientId, Timer]]:
        self.reads_ms.append(self.passed_ms)
        self.until_ms.append(until_ms)
        self.passed_ms += self.read_takes_ms
        self.during_read()
        if self.read_error is not None:
            raise self.read_error
        yield from (row for row in self.stored if row[1][0] <= until_ms)

    def rests(self, batch_id: int = 0, **due_ms: int | None) -> None:
        """Ends a micro-batch. due_ms: when sessions are due, in ms from the beginning of the test; None = no deadline."""
        reports: Reports = {client_id: None if ms is None else (BEGAN_MS + ms, 1) for client_id, ms in due_ms.items()}
        self.timers.rests(batch_id, reports)

    def step_at(self, passed_ms: int) -> float:
        self.passed_ms = passed_ms
        return self.timers.step()

    def run_until(self, end_ms: int) -> int:
        """Does what the thread does, without waiting. Returns the number of steps."""
        steps = 0
        while self.passed_ms < end_ms:
            self.passed_ms += math.ceil(self.timers.step() * 1_000 - 1e-6)
            steps += 1
        return steps

    def called(self) -> list[str]:
        return [key.decode() for key, _, _ in self.appended if key != WAKE_UP_KEY]

    def woken_ms(self) -> list[int]:
        """Returns when the records for the query were appended."""
        return [at_ms for key, value, at_ms in self.appended if (key, value) == WAKE_UP]


def test_a_due_session_is_called_under_its_id_and_the_pause_ends() -> None:
    harness = TimersHarness()
    harness.rests(a=100, b=10_000)
    harness.step_at(100)
    assert (harness.appended, harness.hurried) == ([], [])
    harness.step_at(100 + SLOT_MS)
    ((key, value, _),) = harness.appended
    assert (key, decode_events(value)) == (b"a", (DeadlineReached(),))
    assert harness.hurried == [1], "after the append"
    harness.step_at(100 + 2 * SLOT_MS)
    assert (harness.called(), harness.hurried) == (["a"], [1])


def test_the_calls_are_in_the_order_of_the_deadlines() -> None:
    harness = TimersHarness()
    harness.rests(third=300, first=100, second=200)
    harness.step_at(1_000)
    assert (harness.called(), harness.hurried) == (["first", "second", "third"], [3])


def test_a_call_that_kafka_does_not_take_is_made_at_the_next_step() -> None:
    harness = TimersHarness(limit=2)
    harness.step_at(0)
    harness.rests(a=100, b=200, c=300)
    harness.failing = True
    for _ in range(2):
        with pytest.raises(KafkaError):
            harness.step_at(1_000)
    assert harness.hurried == []
    harness.failing = False
    harness.step_at(1_000)
    assert (harness.called(), harness.hurried) == (["a", "b"], [2])
    harness.rests(1, a=None, b=None)
    harness.step_at(1_000)
    assert harness.called() == ["a", "b", "c"]


def test_a_call_that_fails_for_another_reason_is_not_lost() -> None:
    """A file with a certificate of Kafka is missing while it is replaced."""
    harness = TimersHarness()
    harness.rests(a=100)
    harness.failing, harness.append_error = True, FileNotFoundError("ca.pem")
    with pytest.raises(FileNotFoundError):
        harness.step_at(1_000)
    harness.failing = False
    harness.step_at(1_000)
    assert harness.called() == ["a"]


def test_nothing_is_lost_when_a_report_comes_during_a_failing_append() -> None:
    harness = TimersHarness()
    harness.rests(a=100, b=100)
    harness.failing, harness.meanwhile = True, lambda: harness.rests(1, a=5_000, c=100)
    with pytest.raises(KafkaError):
        harness.step_at(1_000)
    harness.failing, harness.meanwhile = False, lambda: None
    harness.step_at(1_000)
    assert sorted(harness.called()) == ["b", "c"]
    harness.step_at(5_000 + SLOT_MS)
    assert sorted(harness.called()) == ["a", "b", "c"]


def test_a_session_that_ends_during_a_failing_append_is_not_called() -> None:
    harness = TimersHarness()
    harness.rests(gone=100, there=100)
    harness.failing, harness.meanwhile = True, lambda: harness.rests(1, gone=None)
    with pytest.raises(KafkaError):
        harness.step_at(1_000)
    harness.failing, harness.meanwhile = False, lambda: None
    harness.step_at(1_000)
    assert harness.called() == ["there"]


def test_nothing_is_lost_when_a_report_comes_during_an_append() -> None:
    harness = TimersHarness()
    harness.step_at(0)
    harness.rests(a=100)
    harness.meanwhile = lambda: harness.rests(1, a=1_000, b=500)
    assert harness.step_at(500 + SLOT_MS) == 0, "b is due at once"
    harness.meanwhile = lambda: None
    harness.step_at(500 + SLOT_MS)
    harness.step_at(1_000 + SLOT_MS)
    assert harness.called() == ["a", "b", "a"]


def test_the_first_step_reads_the_stored_deadlines() -> None:
    harness = TimersHarness()
    harness.stored = [("due", (BEGAN_MS - 1_000, 1)), ("soon", (BEGAN_MS + 100, 1)), ("far", (BEGAN_MS + HORIZON_MS + 1, 1))]
    harness.step_at(0)
    assert (harness.called(), harness.until_ms) == (["due"], [BEGAN_MS + HORIZON_MS])
    harness.step_at(100 + SLOT_MS)
    assert harness.called() == ["due", "soon"]


def test_the_stored_deadlines_are_read_again_after_a_time_not_before() -> None:
    harness = TimersHarness()
    restore_ms = round(RESTORE_S * 1_000)
    harness.step_at(0)
    harness.passed_ms = 1_234
    harness.run_until(3 * restore_ms - 1)
    assert harness.reads_ms == [0, restore_ms, 2 * restore_ms]


def test_a_far_deadline_is_in_time_by_a_later_reading() -> None:
    harness = TimersHarness()
    far_ms = HORIZON_MS + 10_000
    harness.stored = [("far", (BEGAN_MS + far_ms, 1))]
    harness.run_until(far_ms + 1_000)
    assert [(key, far_ms < at_ms <= far_ms + SLOT_MS) for key, _, at_ms in harness.appended] == [(b"far", True)]


def test_a_far_deadline_that_was_reported_comes_by_a_later_reading() -> None:
    harness = TimersHarness()
    far_ms = HORIZON_MS + 10_000
    harness.rests(far=far_ms)
    harness.stored = [("far", (BEGAN_MS + far_ms, 1))]
    harness.run_until(far_ms + 1_000)
    assert harness.called() == ["far"]


def test_a_long_reading_is_not_repeated_as_soon() -> None:
    harness = TimersHarness()
    harness.read_takes_ms = 20_000
    harness.run_until(round(RESTORE_S * 1_000) + 100_000)
    assert harness.reads_ms == [0]


def test_a_far_deadline_is_in_time_though_readings_are_long() -> None:
    """The time between two readings may not exceed the horizon. The call waits for a reading at most."""
    harness = TimersHarness()
    harness.read_takes_ms = 60_000
    far_ms = HORIZON_MS + 10_000
    harness.stored = [("far", (BEGAN_MS + far_ms, 1))]
    harness.run_until(3 * HORIZON_MS)
    assert harness.appended[0][2] <= far_ms + harness.read_takes_ms + SLOT_MS


def test_a_report_during_a_reading_is_newer_than_what_is_read() -> None:
    harness = TimersHarness()
    harness.stored = [("a", (BEGAN_MS + 100, 1)), ("gone", (BEGAN_MS + 100, 1)), ("b", (BEGAN_MS + 100, 1))]
    harness.during_read = lambda: harness.rests(0, a=1_000, gone=None)
    harness.step_at(0)
    harness.step_at(100 + SLOT_MS)
    assert harness.called() == ["b"]
    harness.step_at(1_000 + SLOT_MS)
    assert harness.called() == ["b", "a"]


def test_known_sessions_are_called_while_the_state_cannot_be_read() -> None:
    harness = TimersHarness()
    harness.read_error = PySparkException("a file is missing")
    harness.rests(a=100)
    with pytest.raises(PySparkException):
        harness.step_at(100 + SLOT_MS)
    assert harness.called() == ["a"]


def test_a_resting_query_gets_a_record_after_each_longest_pause() -> None:
    harness = TimersHarness(pause_ms=PAUSE_MS)
    harness.step_at(500)
    harness.rests()
    harness.run_until(500 + 3 * PAUSE_MS + 1)
    assert harness.woken_ms() == [500 + PAUSE_MS, 500 + 2 * PAUSE_MS, 500 + 3 * PAUSE_MS]
    assert harness.appended[0][:2] == WAKE_UP
    assert harness.called() == []


def test_a_query_that_has_not_rested_yet_gets_no_record() -> None:
    harness = TimersHarness(pause_ms=PAUSE_MS)
    harness.run_until(5 * PAUSE_MS)
    assert harness.appended == []
    harness.rests()
    harness.step_at(harness.passed_ms + PAUSE_MS)
    assert len(harness.woken_ms()) == 1


def test_a_query_gets_no_record_while_a_micro_batch_works() -> None:
    harness = TimersHarness(pause_ms=PAUSE_MS)
    harness.rests()
    harness.timers.works()
    harness.run_until(5 * PAUSE_MS)
    assert harness.appended == []
    ended_ms = harness.passed_ms
    harness.rests(1)
    harness.run_until(ended_ms + PAUSE_MS + 1)
    assert harness.woken_ms() == [ended_ms + PAUSE_MS]


def test_a_sessions_call_is_made_while_a_micro_batch_works() -> None:
    harness = TimersHarness(pause_ms=PAUSE_MS)
    harness.rests(a=100)
    harness.timers.works()
    harness.step_at(100 + SLOT_MS)
    assert harness.called() == ["a"]


def test_a_pause_without_a_new_micro_batch_does_not_delay_the_record() -> None:
    harness = TimersHarness(pause_ms=PAUSE_MS)
    for at_ms in range(0, 2 * PAUSE_MS + 1, PAUSE_MS // 4):
        harness.timers.works()
        harness.passed_ms = at_ms
        harness.rests(7)
        harness.timers.step()
    assert harness.woken_ms() == [PAUSE_MS, 2 * PAUSE_MS]


def test_a_new_micro_batch_delays_the_record() -> None:
    harness = TimersHarness(pause_ms=PAUSE_MS)
    for number in range(8):
        harness.passed_ms = number * PAUSE_MS // 4
        harness.rests(number)
        harness.timers.step()
    assert harness.appended == []
    harness.run_until(3 * PAUSE_MS)
    assert harness.woken_ms() == [7 * PAUSE_MS // 4 + PAUSE_MS]


def test_a_record_that_kafka_does_not_take_is_tried_again() -> None:
    harness = TimersHarness(pause_ms=PAUSE_MS)
    harness.rests()
    harness.failing = True
    with pytest.raises(KafkaError):
        harness.step_at(PAUSE_MS)
    harness.failing = False
    harness.step_at(PAUSE_MS + 10)
    assert harness.woken_ms() == [PAUSE_MS + 10]


def test_a_step_tells_when_something_is_due_and_nothing_is_late() -> None:
    harness = TimersHarness(pause_ms=PAUSE_MS)
    due_ms = {"a": 100, "b": 100 + 3 * SLOT_MS, "c": PAUSE_MS + 777, "d": 30_000}
    harness.rests(**due_ms)
    steps = harness.run_until(40_000)
    late_ms = {key.decode(): at_ms - due_ms[key.decode()] for key, _, at_ms in harness.appended if key != WAKE_UP_KEY}
    assert late_ms.keys() == due_ms.keys()
    assert all(0 < late <= SLOT_MS for late in late_ms.values()), late_ms
    assert harness.woken_ms() == [*range(PAUSE_MS, 40_000, PAUSE_MS)]
    assert steps <= 2 * (len(harness.appended) + 1), "no step without something to do, but for the last of them"


def test_a_step_asks_for_no_next_one_at_once_while_the_limit_holds() -> None:
    harness = TimersHarness(limit=1)
    harness.step_at(0)
    harness.rests(a=100, b=100)
    assert harness.step_at(1_000) > 0
    assert len(harness.called()) == 1
    harness.rests(1, **{harness.called()[0]: None})
    harness.timers.step()
    assert sorted(harness.called()) == ["a", "b"]


@pytest.fixture
def _waits_for_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread tries again at once, and otherwise waits until it is woken."""
    monkeypatch.setattr(session_timers, "_AGAIN_S", 0.001)
    monkeypatch.setattr(session_timers, "_LONGEST_WAIT_S", 10 * DEADLINE_S)


@pytest.mark.usefixtures("_waits_for_news")
@pytest.mark.parametrize(
    ("error", "level"), [(PySparkException("no"), "warning"), (Py4JError("gone"), "warning"), (ZeroDivisionError("?"), "error")]
)
def test_a_reading_that_fails_is_tried_again_by_the_thread(error: Exception, level: str) -> None:
    harness = TimersHarness()
    harness.stored, harness.read_error = [("a", (BEGAN_MS - 1_000, 1))], error
    with capture_logs() as lines, harness.timers as timers:
        timers.start()
        wait_until(lambda: len(lines) > 1, "it is tried again, and fails again")
        harness.read_error = None
        wait_until(lambda: harness.called() == ["a"], "the stored session is called")
    assert {(line["event"], line["log_level"]) for line in lines} == {("timers_wait", level)}
    assert harness.closed


@pytest.mark.usefixtures("_waits_for_news")
def test_a_call_that_fails_is_tried_again_by_the_thread() -> None:
    harness = TimersHarness()
    harness.stored, harness.failing = [("a", (BEGAN_MS - 1_000, 1))], True
    with capture_logs() as lines, harness.timers as timers:
        timers.start()
        wait_until(lambda: len(lines) > 1, "it is tried again, and fails again")
        harness.failing = False
        wait_until(lambda: harness.called() == ["a"], "the session is called")
    assert {(line["event"], line["log_level"]) for line in lines} == {("timers_wait", "warning")}
    assert harness.reads_ms == [0]


class TimersWithNews(SessionTimers):
    """Runs `between` once: after the first step, before the thread waits."""

    between: Callable[[], None] | None = None

    def step(self) -> float:
        wait_s = super().step()
        between, self.between = self.between, None
        if between is not None:
            between()
        return wait_s


@pytest.mark.usefixtures("_waits_for_news")
def test_a_report_between_a_step_and_the_wait_is_not_missed() -> None:
    harness = TimersHarness(timers=TimersWithNews)
    assert isinstance(harness.timers, TimersWithNews)
    harness.timers.between = lambda: harness.rests(a=-1_000)
    with harness.timers as timers:
        timers.start()
        wait_until(lambda: harness.called() == ["a"], "the session that is due is called", within_s=DEADLINE_S / 4)


@pytest.mark.usefixtures("_waits_for_news")
def test_a_report_ends_the_wait_of_the_thread() -> None:
    harness = TimersHarness()
    with harness.timers as timers:
        timers.start()
        wait_until(lambda: timers._changed._waiters, "the thread waits")  # type: ignore[attr-defined]
        harness.rests(a=-1_000)
        wait_until(lambda: harness.called() == ["a"], "the session that is due is called")


@pytest.mark.usefixtures("_waits_for_news")
def test_the_end_of_the_with_ends_the_thread_and_closes_the_log() -> None:
    harness = TimersHarness()
    with harness.timers as timers:
        timers.start()
        wait_until(lambda: timers._changed._waiters, "the thread waits")  # type: ignore[attr-defined]
    assert not timers._thread.is_alive()
    assert harness.closed


def test_the_end_of_the_with_interrupts_a_reading_without_a_warning() -> None:
    harness = TimersHarness()

    def cancelled() -> None:
        assert harness.cancelled.wait(DEADLINE_S)
        raise PySparkException("the job was cancelled")

    harness.during_read = cancelled
    with capture_logs() as lines, harness.timers as timers:
        timers.start()
        wait_until(lambda: harness.reads_ms, "the state is read")
    assert not timers._thread.is_alive()
    assert (lines, harness.closed) == ([], True)


def test_timers_that_were_never_started_end_too() -> None:
    harness = TimersHarness()
    with harness.timers:
        pass
    assert (harness.closed, harness.cancelled.is_set(), harness.reads_ms) == (True, False, [])
