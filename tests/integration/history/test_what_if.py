"""docs/operate/what_if.md: what the command says of another setting is what clients with that setting have really done."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer

from inflight.cli.options import load_for_running_system
from inflight.demo.up import UpProcess
from inflight.local.spark_jars import spark_jars
from state.records.ledger import LedgerRow
from streaming.engine.batch_record import MICRO_BATCH
from streaming.what_if import small_log
from streaming.what_if.comparison import Comparison
from streaming.what_if.job import Period, what_if
from tests.integration.history.history_device import AnsweringDevice
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "what_if.md"
MESSAGES = 10
SHORT_QUEUE = 3
SHORT = {"profiles": [{"clients": "short", "max_mqueue_len": SHORT_QUEUE}]}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    """A system in which clients of one profile have already what the page asks about."""
    with UpProcess(tmp_path / "data", "--set", f"profiles={json.dumps(SHORT['profiles'])}", "--set", "engine.nice=0") as process:
        yield process


def send(producer: KafkaProducer, client_id: str, number: int, *, qos: int = 1) -> None:
    headers = [("mqtt-topic", b"cmd"), ("mqtt-qos", b"%d" % qos), ("message-id", f"{client_id}-{number}".encode())]
    producer.send("inflight.messages", key=client_id.encode(), value=b"p", headers=headers).get(30)


def outcomes(up: UpProcess, count: int) -> tuple[dict[str, str], int]:
    """Returns the outcomes of so many messages, and when the last one was recorded."""
    found: dict[str, str] = {}
    newest_ms = 0
    consumer = KafkaConsumer("inflight.receipts", bootstrap_servers=up.kafka, auto_offset_reset="earliest")

    def all_read() -> bool:
        nonlocal newest_ms
        for records in consumer.poll(timeout_ms=200).values():
            for receipt in (json.loads(record.value) for record in records):
                found[receipt["message_id"]] = receipt["outcome"]
                newest_ms = max(newest_ms, receipt["recorded_ms"])
        return len(found) == count

    wait_until(all_read, lambda: f"{count} receipts: {found}")
    consumer.close()
    return found, newest_ms


def await_recorded(up: UpProcess, until_ms: int) -> None:
    """Returns when the ledger says what the micro-batch of that time has read."""
    consumer = KafkaConsumer("inflight.ledger", bootstrap_servers=up.kafka, auto_offset_reset="earliest")
    newest_ms = 0

    def is_recorded() -> bool:
        nonlocal newest_ms
        for records in consumer.poll(timeout_ms=200).values():
            for row in (LedgerRow(**row) for record in records for row in json.loads(record.value)):
                newest_ms = max(newest_ms, row.batch_ms if row.transition == MICRO_BATCH else 0)
        return newest_ms >= until_ms

    wait_until(is_recorded, lambda: f"recorded up to {newest_ms}, wanted {until_ms}")
    consumer.close()


def test_what_if_says_what_a_real_client_with_that_setting_did(
    up: UpProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = KafkaProducer(bootstrap_servers=up.kafka, acks="all")
    with AnsweringDevice(*up.mqtt, "online", lambda topic, times: 0) as online:
        for number in range(MESSAGES):
            send(producer, "late", number)
            send(producer, "short", number)
            send(producer, "online", number, qos=1 + number % 2)
            online.await_count(number + 1)
        # The sessions have read what was sent before: all for the one that is online, and what the short queue dropped.
        outcomes(up, MESSAGES + MESSAGES - SHORT_QUEUE)
        with AnsweringDevice(*up.mqtt, "late", lambda topic, times: 0), AnsweringDevice(*up.mqtt, "short", lambda *_: 0):
            real, newest_ms = outcomes(up, 3 * MESSAGES)
    producer.close()
    await_recorded(up, newest_ms)
    (policy,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "other.toml").write_text(policy)
    commands = re.findall(r"^inflight (what-if [^#\n]*)", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    said = [run(up, tmp_path, command) for command in commands]
    assert "7 messages: delivered → maxlen" in said[0]
    assert (tmp_path / "other.svg").read_text().startswith("<svg")
    found = json.loads(said[1])
    assert (found["left_out"], found["micro_batches_recorded"], found["verified"]) == ({}, True, 3 * MESSAGES)
    late = found["groups"]["late"]
    assert late["after"] == {outcome: list(real_of(real, "short").values()).count(outcome) for outcome in ("maxlen", "delivered")}
    lost = {number for number, outcome in real_of(real, "short").items() if outcome == "maxlen"}
    assert {example["message_id"].removeprefix("late-") for example in found["examples"]} == lost
    assert found["groups"]["*"]["changed"] == {}
    in_this_process = compared(up, tmp_path / "other.toml")
    monkeypatch.setattr(small_log, "MOST_RECORDS", -1)
    by_spark = compared(up, tmp_path / "other.toml")
    assert (by_spark.groups, by_spark.verified, by_spark.flow) == (
        in_this_process.groups,
        in_this_process.verified,
        in_this_process.flow,
    )


def compared(up: UpProcess, policy: Path) -> Comparison:
    """Asks for the whole log, within this process."""
    present = load_for_running_system(None, None, up.data_dir)
    other = load_for_running_system(None, None, up.data_dir, above=policy)
    return what_if(present, other, Period(), [], spark_jars, print).comparison


def real_of(real: dict[str, str], client_id: str) -> dict[str, str]:
    """Returns the outcomes of one client by the number of the message."""
    prefix = f"{client_id}-"
    return {message_id.removeprefix(prefix): outcome for message_id, outcome in real.items() if message_id.startswith(prefix)}


def run(up: UpProcess, directory: Path, command: str) -> str:
    arguments = [sys.executable, "-m", "inflight", *command.split(), "--data-dir", str(up.data_dir)]
    done = subprocess.run(arguments, cwd=directory, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
