from dataclasses import replace
from pathlib import Path

import pytest

from streaming.config.settings import Settings
from streaming.engine.watching.watchdog import EngineSigns, HangRule, Hangs

NOTHING = EngineSigns(batches=7)


class Watched:
    """A rule with a patience of 60 s, evaluated every 5 s, and micro-batches that come at least every second."""

    def __init__(self, **engine: object) -> None:
        self.now_s = 1_000.0
        settings = Settings(engine={"hangs_after_ms": "60s", "idle_trigger_interval_ms": "1s"} | engine)
        self.rule = HangRule(settings.engine, clock_s=lambda: self.now_s)
        assert self.look(NOTHING) is None

    def look(self, signs: EngineSigns, after_s: float = 5.0) -> str | None:
        self.now_s += after_s
        return self.rule.judge(signs)

    def seconds_until_it_hangs(self, signs: EngineSigns, limit_s: float = 200.0) -> float | None:
        began_s = self.now_s
        while self.now_s - began_s < limit_s:
            if self.look(signs) is not None:
                return self.now_s - began_s
        return None


@pytest.mark.promise("hanging-query")
def test_a_query_hangs_after_patience_and_pause_without_a_sign() -> None:
    assert Watched().seconds_until_it_hangs(NOTHING) == 65
    assert Watched(idle_trigger_interval_ms="1m").seconds_until_it_hangs(NOTHING) == 120


def test_the_reason_lists_the_signs() -> None:
    watched = Watched()
    watched.seconds_until_it_hangs(NOTHING)
    said = watched.look(NOTHING)
    assert said is not None
    assert said.startswith("no micro-batch was committed for 70 s, after 7 of this engine; no task got on")
    assert "did nothing, and Kafka answers" in said


@pytest.mark.parametrize(
    "sign",
    [
        EngineSigns(batches=8),
        EngineSigns(batches=7, work=(1, 2)),
        EngineSigns(batches=7, kafka_answers=False),
        EngineSigns(batches=7, processor_s=0.5),
    ],
    ids=["a micro-batch is committed", "a task gets on", "Kafka does not answer", "the processors are in use"],
)
def test_each_sign_of_work_begins_the_time_anew(sign: EngineSigns) -> None:
    watched = Watched()
    for _ in range(12):
        assert watched.look(NOTHING) is None
    assert watched.look(sign) is None
    after = replace(sign, kafka_answers=True)
    assert [watched.look(after) for _ in range(12)] == [None] * 12


def test_an_engine_that_uses_less_than_a_tenth_of_a_processor_hangs() -> None:
    watched = Watched()
    used_s, looks = 0.0, 0
    while watched.look(EngineSigns(batches=7, processor_s=used_s)) is None:
        used_s += 0.4  # in five seconds
        looks += 1
    assert looks == 12


def test_processors_in_use_alone_count_for_ten_times_the_patience() -> None:
    watched = Watched()
    used_s, looks, said = 0.0, 0, None
    while said is None and looks < 1_000:
        used_s, looks = used_s + 5, looks + 1
        said = watched.look(EngineSigns(batches=7, processor_s=used_s))
    assert looks == 10 * 61 / 5
    assert "did other things" in said


def test_a_time_in_which_this_process_stood_still_does_not_count() -> None:
    watched = Watched()
    assert watched.look(NOTHING, after_s=3_600) is None
    assert watched.look(NOTHING) is None


def test_hangs_are_counted_in_the_data_directory(tmp_path: Path) -> None:
    assert Hangs.read(tmp_path) == Hangs(count=0)
    told = Hangs(count=2, at="2026-01-01T00:00:00+00:00", reason="why")
    told.write(tmp_path)
    assert Hangs.read(tmp_path) == told
    (tmp_path / "hangs.json").write_bytes(b"{")
    assert Hangs.read(tmp_path) == Hangs(count=0)
