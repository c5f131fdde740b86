import os

import pytest

from streaming.config.settings import Settings
from streaming.engine.spark_options import spark_master


def master(
    monkeypatch: pytest.MonkeyPatch, cores: int, *, archive: bool, state_partitions: int = 2, given: str = "local[*]"
) -> str:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    engine = {"master": given, "state_partitions": state_partitions}
    return spark_master(Settings(engine=engine, archive={"enabled": archive}))


def test_each_processor_has_two_slots_because_tasks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert master(monkeypatch, 2, archive=False) == "local[4]"
    assert master(monkeypatch, 1, archive=False) == "local[2]"


def test_the_archive_has_a_slot_that_the_sessions_do_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    assert master(monkeypatch, 1, archive=True) == "local[3]"
    assert master(monkeypatch, 2, archive=True, state_partitions=4) == "local[5]"
    assert master(monkeypatch, 16, archive=True) == "local[32]"


@pytest.mark.parametrize("archive", [True, False])
def test_a_configured_master_is_not_changed(monkeypatch: pytest.MonkeyPatch, *, archive: bool) -> None:
    assert master(monkeypatch, 2, archive=archive, given="local[2]") == "local[2]"
    assert master(monkeypatch, 2, archive=archive, given="yarn") == "yarn"
