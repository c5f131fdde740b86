"""How many slots for tasks the engine asks Spark for."""

import os

import pytest

from streaming.config.settings import Settings
from streaming.engine.lifecycle.spark import spark_master


def master(
    monkeypatch: pytest.MonkeyPatch, cores: int, *, archive: bool, state_partitions: int = 2, given: str = "local[*]"
) -> str:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    engine = {"master": given, "state_partitions": state_partitions}
    return spark_master(Settings(engine=engine, archive={"enabled": archive}))


def test_the_archive_has_a_slot_that_the_sessions_do_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    assert master(monkeypatch, 2, archive=True) == "local[3]"
    assert master(monkeypatch, 4, archive=True, state_partitions=4) == "local[5]"
    assert master(monkeypatch, 16, archive=True) == "local[16]"


def test_without_the_archive_or_with_a_master_of_ones_own_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert master(monkeypatch, 2, archive=False) == "local[*]"
    assert master(monkeypatch, 2, archive=True, given="local[2]") == "local[2]"
    assert master(monkeypatch, 2, archive=True, given="yarn") == "yarn"
