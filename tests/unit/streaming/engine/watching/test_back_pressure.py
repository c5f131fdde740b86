import msgspec
import pytest
from kafka.errors import KafkaTimeoutError

from streaming.config.errors import ConfigurationError
from streaming.config.settings import load_settings
from streaming.engine.progress import BatchProgress
from streaming.engine.watching.back_pressure import BackPressure, EngineWatermarks
from streaming.settings import ThrottleSettings

WATERMARKS = ThrottleSettings(lag_high=100, lag_low=10, state_high=1_000, state_low=500, free_disk_low=50, free_disk_high=80)


def batch(*, lag: int = 0, state: int = 0, number: int = 1) -> BatchProgress:
    return BatchProgress(batch_id=number, started="", duration_ms=1, consumer_lag=lag, state_bytes=state)


def load(*, lag: int = 0, state: int = 0, disk: int | None = 1_000) -> tuple[BatchProgress, int | None]:
    return batch(lag=lag, state=state), disk


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
    verdicts = [bool(watermarks.judge(*load(lag=lag))) for lag in (0, 99, 100, 50, 11, 10, 99, 100)]
    assert verdicts == [False, False, True, True, True, False, False, True]


def test_a_disk_counts_from_little_until_there_is_enough() -> None:
    watermarks = EngineWatermarks(WATERMARKS)
    verdicts = [bool(watermarks.judge(*load(disk=free))) for free in (100, 51, 50, 60, 79, 80, 51)]
    assert verdicts == [False, False, True, True, True, False, False]


def test_backends_wait_until_everything_is_below_its_watermark() -> None:
    watermarks = EngineWatermarks(WATERMARKS)
    assert watermarks.judge(*load(lag=200, state=2_000)) == "the engine is 200 records behind; the session state has 2000B"
    assert watermarks.judge(*load(lag=0, state=600)) == "the session state has 600B"
    assert watermarks.judge(*load()) == ""


def test_a_watermark_of_0_or_an_unknown_disk_throttles_no_client() -> None:
    watermarks = EngineWatermarks(ThrottleSettings(lag_high=0, lag_low=0, state_high=0, state_low=0))
    assert watermarks.judge(*load(lag=10**9, state=10**12, disk=None)) == ""


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
    assert msgspec.json.decode(second or b"") == {"code": 530, "reason": "the engine is 100 records behind", "since_ms": 7}
    assert third is None


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


@pytest.mark.parametrize("low", ["lag_low=300000", "state_low=5", "free_disk_high=1KiB"])
def test_marks_that_contradict_each_other_are_refused(low: str) -> None:
    with pytest.raises(ConfigurationError, match="throttle"):
        load_settings(None, [f"throttle.{low}", "throttle.state_high=5"])
