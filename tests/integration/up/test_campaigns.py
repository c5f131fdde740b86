"""docs/guides/campaigns.md: its commands as written, and a campaign that is killed in the middle."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kafka import KafkaConsumer

from inflight import Presence
from tests.integration.up.conftest import SharedUp
from tests.integration.up.wire_device import WireDevice
from tests.support.waiting import DEADLINE_S, wait_until

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "campaigns.md"
CLIENTS = [f"meter-{number}" for number in range(12)]
IDS = {f"firmware-7/{client_id}" for client_id in CLIENTS}


@pytest.mark.servers
@pytest.mark.promise("campaigns")
def test_a_campaign_that_is_killed_goes_on_and_sends_once(up: SharedUp, tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (campaign,) = re.findall(r"^```toml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "firmware-7.toml").write_text(campaign)
    written = re.findall(r"^inflight (campaign (\w+)[^#\n]*)", text, flags=re.MULTILINE)
    by_name = {name: command for command, name in reversed(written)}
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        devices = list(pool.map(lambda client_id: WireDevice(up.mqtt, client_id, 5, expiry_s=600), CLIENTS))
    try:
        with Presence(up.kafka) as presence:
            wait_until(lambda: presence.read().keys() >= set(CLIENTS), "the sessions are announced")
        start_and_kill(up, tmp_path, by_name["start"])
        shown = [inflight(up, tmp_path, command) for command, name in written if name == "status"]
        assert len(shown) == 2
        assert all("firmware-7" in each for each in shown)
        assert inflight(up, tmp_path, by_name["resume"]) == "campaign firmware-7 is complete\n"
        assert {message_id: number for message_id, number in messages(up).items() if number != 1} == {}
        for device in devices:
            device.answer(0x40, device.parse(device.packet()), 0)
        wait_until(lambda: status(up, tmp_path)["outcomes"] == {"delivered": len(CLIENTS)}, lambda: status(up, tmp_path))
        assert status(up, tmp_path)["no_outcome"] == 0
    finally:
        for device in devices:
            device.socket.close()
    refused = run(up, tmp_path, by_name["abort"])
    assert (refused.returncode, refused.stderr) == (1, "inflight: campaign firmware-7 is complete already\n")


def start_and_kill(up: SharedUp, directory: Path, command: str) -> None:
    """Kills the process when it has sent its first batch."""
    process = subprocess.Popen(
        [sys.executable, "-m", "inflight", *command.split()],
        cwd=directory,
        env=environment(up),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if "5 of 12 sent" in line:
            process.send_signal(signal.SIGKILL)
    assert process.wait(DEADLINE_S) == -signal.SIGKILL, said
    process.stderr.close()


def messages(up: SharedUp) -> Counter[str]:
    """Returns how often Kafka has each message of the campaign."""
    found: Counter[str] = Counter()
    consumer = KafkaConsumer("inflight.messages", bootstrap_servers=up.kafka, auto_offset_reset="earliest")

    def all_found() -> bool:
        for records in consumer.poll(timeout_ms=200).values():
            ids = (dict(record.headers).get("message-id", b"").decode(errors="replace") for record in records)
            found.update(message_id for message_id in ids if message_id in IDS)
        return found.keys() == IDS

    wait_until(all_found, lambda: f"12 messages: {found}")
    consumer.close()
    return found


def status(up: SharedUp, directory: Path) -> dict[str, object]:
    (document,) = [json.loads(line) for line in inflight(up, directory, "campaign status firmware-7 --json").splitlines()]
    return dict(document)


def inflight(up: SharedUp, directory: Path, command: str) -> str:
    done = run(up, directory, command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(up: SharedUp, directory: Path, command: str) -> "subprocess.CompletedProcess[str]":
    arguments = [sys.executable, "-m", "inflight", *command.split()]
    return subprocess.run(
        arguments, cwd=directory, env=environment(up), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def environment(up: SharedUp) -> dict[str, str]:
    return {**os.environ, "INFLIGHT__ENGINE__DATA_DIR": str(up.data_dir)}
