"""docs/guides/campaigns.md beside a system with the archive: a campaign is paused and resumed, and SQL says what became of it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from inflight import Presence
from inflight.demo.up import UpProcess
from streaming.history.delta_reader import is_table, rows_with
from tests.integration.history.history_device import AnsweringDevice
from tests.support.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "campaigns.md"
CLIENTS = [f"meter-{number}" for number in range(12)]
REFUSING, REFUSED = "meter-3", 0x87
SETTINGS = ("archive.enabled=true", "archive.trigger_interval_ms=3s", "engine.nice=0")  # other tests run beside it


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    with UpProcess(tmp_path / "data", *(part for setting in SETTINGS for part in ("--set", setting))) as process:
        yield process


def test_a_campaign_is_paused_resumed_and_counted_by_sql(up: UpProcess, tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (campaign,) = re.findall(r"^```toml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "firmware-7.toml").write_text(campaign)
    written = re.findall(r"^inflight ((?:campaign )?(\w+)[^#\n]*)", text, flags=re.MULTILINE)
    by_name = {name: command for command, name in reversed(written)}
    with ExitStack() as devices:
        for client_id in CLIENTS:
            code = REFUSED if client_id == REFUSING else 0
            devices.enter_context(AnsweringDevice(*up.mqtt, client_id, lambda topic, times, code=code: code))
        with Presence(up.kafka) as presence:
            wait_until(lambda: presence.read().keys() >= set(CLIENTS), "the sessions are announced")
        start_and_pause(up, tmp_path, by_name["start"], by_name["pause"])
        paused = status(up, tmp_path)
        assert paused["status"] == "paused"
        assert paused["sent"] in (5, 10), "whole batches, and not all"
        assert inflight(up, tmp_path, by_name["resume"]) == "campaign firmware-7 is complete\n"
        wait_until(lambda: status(up, tmp_path)["no_outcome"] == 0, lambda: status(up, tmp_path))
    expected = {"delivered": len(CLIENTS) - 1, "rejected": 1}
    assert status(up, tmp_path)["outcomes"] == expected
    receipts = up.data_dir / "tables" / "receipts"
    wait_until(lambda: is_table(receipts) and all(is_archived(receipts, client_id) for client_id in CLIENTS), "the receipts")
    rows = map(json.loads, inflight(up, tmp_path, f"{by_name['sql']} --json").splitlines())
    assert {row["outcome"]: row["clients"] for row in rows} == expected


def is_archived(receipts: Path, client_id: str) -> bool:
    return bool(rows_with(receipts, "message_id", f"firmware-7/{client_id}", ["outcome"]))


def start_and_pause(up: UpProcess, directory: Path, start: str, pause: str) -> None:
    """Lets the sending process stand still from its first batch on until somebody has paused the campaign."""
    process = subprocess.Popen(
        command(start), cwd=directory, env=environment(up), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stdout is not None
    try:
        assert any("5 of 12 sent" in line for line in process.stderr)
        process.send_signal(signal.SIGSTOP)
        assert inflight(up, directory, pause) == "campaign firmware-7 is paused\n"
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, said) == (0, "campaign firmware-7 is paused\n")
    finally:
        process.kill()
        process.wait()


def status(up: UpProcess, directory: Path) -> dict[str, object]:
    return dict(json.loads(inflight(up, directory, "campaign status firmware-7 --json")))


def inflight(up: UpProcess, directory: Path, line: str) -> str:
    done = subprocess.run(
        command(line), cwd=directory, env=environment(up), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(line: str) -> list[str]:
    return [sys.executable, "-m", "inflight", *shlex.split(line)]


def environment(up: UpProcess) -> dict[str, str]:
    return {**os.environ, "INFLIGHT__ENGINE__DATA_DIR": str(up.data_dir)}
