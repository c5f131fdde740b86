from dataclasses import replace
from pathlib import Path

import pytest

from inflight.local.engine_addresses import announced_engine
from inflight.status import observer
from inflight.status.measurements import Measurements, ProcessStatus, SessionTotals
from inflight.status.observer import Observer
from sinks.health import STARTING
from streaming.config.settings import Settings
from tests.unit.inflight.status.test_findings import KAFKA, SESSIONS


def test_sessions_stay_known_while_a_new_engine_has_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    counted: SessionTotals | None = replace(SESSIONS, age_s=1.0, oldest_s=5.0)
    monkeypatch.setattr(observer, "totals_from_metrics", lambda engine: counted)
    monkeypatch.setattr(observer, "metrics_addresses", lambda settings, more: [("engine", "e:1")])
    monkeypatch.setattr(observer, "probe_process", lambda name, address: ProcessStatus(name=name, address=address))
    monkeypatch.setattr(observer.time, "monotonic", lambda: now_s)
    observes = Observer(Settings(engine={"data_dir": str(tmp_path)}))

    def measured() -> Measurements:
        return observes.measure(KAFKA)

    assert measured().sessions == counted
    counted, now_s = None, 107.0
    assert measured().sessions == replace(SESSIONS, age_s=8.0, oldest_s=12.0)
    counted = replace(SESSIONS, age_s=0.0)
    assert measured().sessions == counted
    assert Observer(Settings(engine={"data_dir": str(tmp_path)})).measure(KAFKA).sessions == counted


def test_an_engine_that_starts_to_wait_is_shown_as_standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def probed(name: str, address: str) -> ProcessStatus:
        return ProcessStatus(name=name, address=address, missing=(STARTING,) if address in starting else ())

    monkeypatch.setattr(observer, "probe_process", probed)
    observes = Observer(Settings(engine={"data_dir": str(tmp_path)}), ["engine=127.0.0.1:1"])

    def names() -> set[tuple[str, str]]:
        return {(process.name, process.address) for process in observes.measure(KAFKA).processes}

    starting = {"127.0.0.1:2"}
    with announced_engine(tmp_path, " metrics=127.0.0.1:2", may_wait=True):
        assert names() == {("engine", "127.0.0.1:1"), ("standby", "127.0.0.1:2")}
        starting.add("127.0.0.1:1")
        assert names() == {("engine", "127.0.0.1:1"), ("engine", "127.0.0.1:2")}, "either may work"
    starting.discard("127.0.0.1:1")
    with announced_engine(tmp_path, " metrics=127.0.0.1:2"):
        assert names() == {("engine", "127.0.0.1:1"), ("engine", "127.0.0.1:2")}, "it does not wait"
