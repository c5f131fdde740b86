import msgspec
import pytest
from kafka.errors import KafkaTimeoutError

from state.records.throttle import decode_throttle
from state.setting import MIB
from streaming.config.errors import ConfigurationError
from streaming.config.settings import load_settings
from streaming.engine.progress import BatchProgress
from streaming.engine.watching.back_pressure import BackPressure, EngineWatermarks, Verdict
from streaming.settings import ThrottleSettings

WATERMARKS = ThrottleSettings(
    lag_high=100,
    lag_low=10,
    state_high=1_000,
    state_low=500,
    free_disk_low=50,
    free_disk_high=80,
    backlog_high=8 * MIB,
    backlog_low=4 * MIB,
)


def batch(*, lag: int = 0, state: int = 0, backlog_mib: int = 0, number: int = 1) -> BatchProgress:
    return BatchProgress(
        batch_id=number, started="", duration_ms=1, consumer_lag=lag, state_bytes=state, backlog_bytes=backlog_mib * MIB
    )


def load(*, lag: int = 0, state: int = 0, backlog_mib: int = 0, disk: int | None = 1_000) -> tuple[BatchProgress, int | None]:
    return batch(lag=lag, state=state, backlog_mib=backlog_mib), disk


class FakeTopic:
    def __init__(self) -> None:
        self.written: list[bytes | None] = []
        self.down = False
        self.forgotten: list[int] = []

    def write(self, value: bytes | None) -> None:
        if self.down:
            raise KafkaTimeoutError("down")
        self.written.append(value)

    def forget_clients(self, before_ms: int) -> None:
        self.forgotten.append(before_ms)

    def close(self) -> None:
        pass


def test_a_lag_counts_from_its_high_watermark_down_to_the_low_one() -> None:
    watermarks = EngineWatermarks(WATERMARKS)
    verdicts = [bool(watermarks.judge(*load(lag=lag)).reason) for lag in (0, 99, 100, 50, 11, 10, 99, 100)]
    assert verdicts == [False, False, True, True, True, False, False, True]


def test_a_disk_counts_from_little_until_there_is_enough() -> None:
    watermarks = EngineWatermarks(WATERMARKS)
    verdicts = [bool(watermarks.judge(*load(disk=free)).reason) for free in (100, 51, 50, 60, 79, 80, 51)]
    assert verdicts == [False, False, True, True, True, False, False]


def test_backends_wait_until_everything_is_below_its_watermark() -> None:
    watermarks = EngineWatermarks(WATERMARKS)
    first, second = watermarks.judge(*load(lag=200, state=2_000)), watermarks.judge(*load(lag=0, state=600))
    assert first == Verdict("the engine is 200 records behind; the session state has 2000B")
    assert second == Verdict("the session state has 600B")
    assert watermarks.judge(*load()) == Verdict()


def test_queues_count_together_from_their_high_watermark_to_the_low_one() -> None:
    watermarks = EngineWatermarks(WATERMARKS)
    verdicts = [watermarks.judge(*load(backlog_mib=mib)).is_progressing for mib in (7, 8, 5, 4, 7)]
    assert verdicts == [False, True, True, False, False]
    assert watermarks.judge(*load(backlog_mib=9)) == Verdict("9 MiB wait for clients that are connected and behind", True)


@pytest.mark.parametrize("other", [{"lag": 100}, {"state": 1_000}, {"disk": 50}])
def test_backends_are_refused_while_there_is_another_reason_too(other: dict[str, int]) -> None:
    watermarks = EngineWatermarks(WATERMARKS)
    reason, is_progressing = watermarks.judge(*load(backlog_mib=8, **other))
    assert reason.endswith("; 8 MiB wait for clients that are connected and behind")
    assert not is_progressing
    assert watermarks.judge(*load(backlog_mib=8)).is_progressing


def test_a_watermark_of_0_or_an_unknown_disk_throttles_no_client() -> None:
    watermarks = EngineWatermarks(ThrottleSettings(lag_high=0, lag_low=0, state_high=0, state_low=0, backlog_high=0))
    assert watermarks.judge(*load(lag=10**9, state=10**12, backlog_mib=10**6, disk=None)) == Verdict()


def test_the_verdict_is_written_at_the_start_and_when_it_changes() -> None:
    topic = FakeTopic()
    throttle = BackPressure(WATERMARKS, topic, free_disk_bytes=lambda: None, now_ms=lambda: 7)
    throttle.observe(batch())
    assert topic.written == [], "the engine is not ready"
    throttle.start()
    for lag in (0, 0, 100, 100, 0, 0):
        throttle.observe(batch(lag=lag))
    first, second, third = topic.written
    assert first is None
    reason = "the engine is 100 records behind"
    assert msgspec.json.decode(second or b"") == {"code": 530, "reason": reason, "since_ms": 7, "is_progressing": False}
    assert third is None


def test_the_verdict_is_written_when_backends_have_to_do_something_else() -> None:
    topic, now_ms = FakeTopic(), [0]
    throttle = BackPressure(WATERMARKS, topic, free_disk_bytes=lambda: None, now_ms=lambda: now_ms[0])
    throttle.start()
    for lag, mib in ((0, 0), (0, 8), (0, 9), (100, 9), (100, 0), (0, 0), (0, 8)):
        now_ms[0] += 1
        throttle.observe(batch(lag=lag, backlog_mib=mib))
    written = [value and decode_throttle(value) for value in topic.written]
    told = [throttle and (throttle.since_ms, throttle.is_progressing) for throttle in written]
    assert told == [None, (2, True), (2, False), None, (7, True)], "one throttling has one time"
    assert next(throttle.reason for throttle in written if throttle) == "8 MiB wait for clients that are connected and behind"


def test_a_verdict_that_kafka_refuses_is_written_again_later() -> None:
    topic, now_ms = FakeTopic(), [0]
    throttle = BackPressure(WATERMARKS, topic, free_disk_bytes=lambda: None, now_ms=lambda: now_ms[0])
    throttle.start()
    topic.down = True
    throttle.observe(batch())
    topic.down = False
    now_ms[0] = 4_999
    throttle.observe(batch())
    assert topic.written == []
    now_ms[0] = 5_000
    throttle.observe(batch())
    assert topic.written == [None]


def test_a_new_checkpoint_releases_clients_that_an_older_one_throttled() -> None:
    topic = FakeTopic()
    throttle = BackPressure(WATERMARKS, topic, free_disk_bytes=lambda: None, now_ms=lambda: 7)
    throttle.observe(batch(number=0))
    throttle.start()
    for number in (1, 2):
        throttle.observe(batch(number=number))
    assert topic.forgotten == [7]


def test_a_continuing_engine_leaves_throttled_clients_to_their_sessions() -> None:
    topic = FakeTopic()
    throttle = BackPressure(WATERMARKS, topic, free_disk_bytes=lambda: None, now_ms=lambda: 7)
    throttle.start()
    throttle.observe(batch(number=41))
    assert topic.forgotten == []


@pytest.mark.parametrize("low", ["lag_low=300000", "state_low=5", "free_disk_high=1KiB", "backlog_low=1GiB"])
def test_marks_that_contradict_each_other_are_refused(low: str) -> None:
    with pytest.raises(ConfigurationError, match="throttle"):
        load_settings(None, [f"throttle.{low}", "throttle.state_high=5"])
