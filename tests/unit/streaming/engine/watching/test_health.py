from sinks.health import STARTING
from streaming.config.settings import Settings
from streaming.engine.progress import BatchProgress
from streaming.engine.watching.health import EngineHealth

BATCH = BatchProgress(batch_id=1, started="", duration_ms=1)


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_it_is_ready_from_its_first_micro_batch_on() -> None:
    health = EngineHealth(Settings())
    assert (health.not_alive(), health.not_ready()) == ((), (STARTING,))
    health.beat()
    assert health.not_ready() == (STARTING,)
    health.observe(BATCH)
    assert health.not_ready() == ()


def test_a_standby_is_ready_to_take_over() -> None:
    health = EngineHealth(Settings())
    health.is_standby = True
    assert health.not_ready() == ()
    health.is_standby = False
    assert health.not_ready() == (STARTING,)


def test_it_is_not_ready_after_too_long_without_a_committed_micro_batch() -> None:
    clock = Clock()
    health = EngineHealth(Settings(metrics={"ready_within": "30s"}, engine={"idle_trigger_interval_ms": "10s"}), clock_s=clock)
    health.observe(BATCH)
    clock.now_s += 40
    assert health.not_ready() == ()
    clock.now_s += 1
    (lack,) = health.not_ready()
    assert lack.what == "no micro-batch was committed for 41 s"
    assert "metrics.ready_within" in lack.action
    assert health.not_alive() == (), "a long micro-batch is no reason to end the engine"
    health.observe(BATCH)
    assert health.not_ready() == ()


def test_it_is_not_alive_when_the_query_is_not_supervised() -> None:
    clock = Clock()
    health = EngineHealth(Settings(), clock_s=clock)
    health.beat()
    health.observe(BATCH)
    clock.now_s += 119
    health.observe(BATCH)
    assert health.not_ready() == health.not_alive() == ()
    clock.now_s += 2
    assert len(health.not_alive()) == 1
    assert health.not_ready() == health.not_alive()
