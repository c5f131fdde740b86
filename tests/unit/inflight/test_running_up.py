"""inflight.running_up: a Producer without an address finds the `inflight up` of this directory."""

import os
from pathlib import Path

import pytest

from inflight import NoRunningSystem, Producer
from inflight.local.endpoints import Endpoints
from inflight.running_up import kafka_of_running_up

NOBODY = 1 << 30


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns `var/inflight` of the working directory."""
    monkeypatch.chdir(tmp_path)
    found = tmp_path / "var" / "inflight"
    found.mkdir(parents=True)
    return found


def test_a_running_up_is_found_in_the_working_directory(data_dir: Path) -> None:
    Endpoints(kafka="127.0.0.1:9092", pids={"up": os.getpid()}).write(data_dir)
    assert kafka_of_running_up() == "127.0.0.1:9092"


def test_a_running_up_is_found_by_the_variable_of_its_data_directory(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Endpoints(kafka="127.0.0.1:9093", pids={"up": os.getpid()}).write(data_dir)
    monkeypatch.chdir("/")
    monkeypatch.setenv("INFLIGHT__ENGINE__DATA_DIR", str(data_dir))
    assert kafka_of_running_up() == "127.0.0.1:9093"


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{}", '{"kafka": "h:1", "pids": {}}', f'{{"kafka": "h:1", "pids": {{"up": {NOBODY}}}}}']
)
def test_where_nothing_runs_the_error_says_what_to_do(data_dir: Path, text: str | None) -> None:
    if text is not None:
        (data_dir / "endpoints.json").write_text(text)
    with pytest.raises(NoRunningSystem, match=r"no `inflight up` runs on .*var/inflight: start one in .* or give the address"):
        kafka_of_running_up()


def test_a_producer_without_an_address_asks_for_it(data_dir: Path) -> None:
    with pytest.raises(NoRunningSystem):
        Producer()
