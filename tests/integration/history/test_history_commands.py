"""Runs the commands that query the history, against a running `inflight up` with devices that misbehave as scripted."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer

from inflight.demo.up import UpProcess
from tests.integration.history.history_cli import documents, inflight, run_inflight, traced
from tests.integration.history.history_device import AnsweringDevice
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REJECTED = 0x87
SETTINGS = (
    "archive.enabled=true",
    "retry_interval=500ms",
    "retry_mqtt5=timer",
    "delivery_limit=-1",  # a device that never answers keeps its message in the window, however slow this machine is
    "archive.trigger_interval_ms=3s",
    "max_mqueue_len=3",
)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    with UpProcess(tmp_path_factory.mktemp("history"), *options) as process:
        yield process


@pytest.fixture(scope="module")
def producer(up: UpProcess) -> Iterator[KafkaProducer]:
    made = KafkaProducer(bootstrap_servers=up.kafka, acks="all")
    yield made
    made.close()


def send(producer: KafkaProducer, client_id: str, message_id: str, payload: bytes, *headers: tuple[str, bytes]) -> None:
    own = [("mqtt-topic", b"cmd/run"), ("message-id", message_id.encode()), *headers]
    producer.send("inflight.messages", key=client_id.encode(), value=payload, headers=own).get(30)


def test_the_trace_of_a_replayed_message_shows_all_steps_in_order(up: UpProcess, producer: KafkaProducer) -> None:
    def answer(topic: str, times: int) -> int | None:
        return {1: None, 2: None, 3: REJECTED}.get(times, 0)

    with AnsweringDevice(*up.mqtt, "moody", answer) as device:
        send(producer, "moody", "message-4711", b"open the door")
        device.await_count(3)
        traced(up, "message-4711", lambda steps: "dead letter" in steps)

        (letter,) = documents(up, "dead-letters", "--where", "message_id = 'message-4711'")
        assert (letter["reason"], letter["client_id"], letter["payload_text"]) == ("rejected", "moody", "open the door")
        shown = inflight(up, "dead-letters", "--show", letter["dead_letter_id"][:10]).stdout
        assert "open the door" in shown
        assert "x-death" in shown

        condition = ("--where", "message_id = 'message-4711'")
        planned = documents(up, "replay", *condition, "--dry-run")
        assert planned == [{"message_id": "message-4711", "client_id": "moody", "dead_letter_id": letter["dead_letter_id"]}]
        assert len(device.received) == 3
        (result,) = documents(up, "replay", *condition, "--rate", "100/s")
        assert result == {"matched": 1, "sent": 1, "skipped": {}}
        device.await_count(4)
        steps = traced(up, "message-4711", lambda steps: steps.count("finished") == 2 and "dead_letter_replayed" in steps)
        assert device.received == [b"open the door"] * 4

        (result,) = documents(up, "replay", *condition)
        assert (result["sent"], list(result["skipped"])) == (0, ["replayed_before"])

    told = [step["step"] for step in steps]
    assert [step for step in told if step != "queued"] == [
        "submitted", "accepted", "sent", "resent", "resent", "refused", "finished", "dead_lettered", "dead letter",
        "dead_letter_replayed", "returned", "sent", "finished",
    ]  # fmt: skip
    assert [step["outcome"] for step in steps if step["step"] == "finished"] == ["rejected", "delivered"]
    assert [step["attempt"] for step in steps if step["step"] in ("sent", "resent")] == [1, 2, 3, 1]
    assert steps == sorted(steps, key=lambda step: step["time"])
    table = inflight(up, "trace", "message-4711").stdout
    assert "0x87" in table
    assert table.index("dead_letter_replayed") < table.index("delivered")


def test_a_trace_does_not_wait_for_the_archive(up: UpProcess, producer: KafkaProducer) -> None:
    send(producer, "gate-1", "waiting", b"open")
    found = run_inflight(up, "trace", "waiting").stdout
    assert "submitted" in found, "Kafka has it, whatever the archive has"
    traced(up, "waiting", lambda steps: "queued" in steps)
    ending = inflight(up, "trace", "waiting").stdout.splitlines()[-1]
    assert ending.startswith("waits in gate-1's queue since ")
    assert ending.endswith("; gate-1 has never connected")


def test_live_sessions_are_listed_filtered_and_asked_with_sql(up: UpProcess, producer: KafkaProducer) -> None:
    with AnsweringDevice(*up.mqtt, "silent", lambda topic, times: None) as device:
        send(producer, "silent", "silent-1", b"1")
        device.await_count(1)
        (session,) = documents(up, "sessions", "--where", "client_id = 'silent'")
        assert (session["connected"], session["inflight"], session["queued"]) == (True, 1, 0)
        traced(up, "silent-1", lambda steps: "sent" in steps)  # so the archive has it
        (row,) = documents(
            up,
            "sql",
            "SELECT s.client_id, s.inflight, count(*) AS transitions FROM sessions s JOIN ledger l ON l.client_id = s.client_id "
            "WHERE s.client_id = 'silent' GROUP BY ALL",
        )
        assert row["inflight"] == 1
        assert row["transitions"] >= 1
    assert "ledger" in inflight(up, "sql", "SHOW TABLES").stdout


def test_a_question_joins_what_is_archived_what_is_newer_and_sessions(up: UpProcess, producer: KafkaProducer) -> None:
    with AnsweringDevice(*up.mqtt, "joined", lambda topic, times: 0) as device:
        for number in range(20):
            send(producer, "joined", f"joined-{number}", b"x")
        device.await_count(20)
        question = (
            "SELECT s.client_id, count(DISTINCT r.message_id) AS receipts, count(DISTINCT l.message_id) AS messages, "
            "count(DISTINCT d.dead_letter_id) AS dead, count(DISTINCT u.inflight_id) AS up "
            "FROM sessions s JOIN ledger l USING (client_id) JOIN receipts r USING (client_id, message_id) "
            "LEFT JOIN dead_letters d USING (client_id) LEFT JOIN uplink u USING (client_id) "
            "WHERE s.client_id = 'joined' GROUP BY ALL"
        )

        def answer() -> bool:
            return documents(up, "sql", question) == [{"client_id": "joined", "receipts": 20, "messages": 20, "dead": 0, "up": 0}]

        wait_until(answer, "all receipts are in Kafka, whatever the archive has")
    counts = "SELECT count(*) AS rows, count(DISTINCT (client_id, batch_ms, record_hash, row_index)) AS different FROM ledger"
    (found,) = documents(up, "sql", counts)
    assert found["rows"] == found["different"] > 40
    read = inflight(up, "sql", counts).stderr
    assert "from the archive's tables in" in read
    assert "from the topics of Kafka at" in read


def test_what_cannot_be_answered_is_said_with_what_to_do(up: UpProcess, tmp_path: Path) -> None:
    unknown = inflight(up, "trace", "never-sent", fails=True)
    assert "never-sent" in unknown.stderr
    assert "Traceback" not in unknown.stderr
    wrong = inflight(up, "sql", "SELECT nonsense FROM ledger", fails=True)
    assert "nonsense" in wrong.stderr
    assert "DESCRIBE" in wrong.stderr
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2\n")
    for question in (
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT * FROM '{secret}'",
        f"SELECT client_id FROM ledger WHERE client_id IN (SELECT content FROM read_text('{secret}'))",
    ):
        refused = inflight(up, "sql", question, fails=True)
        assert "hunter2" not in refused.stdout + refused.stderr
        assert "Traceback" not in refused.stderr
    written = inflight(up, "sql", "DROP TABLE ledger", fails=True)
    assert "is no question" in written.stderr
    elsewhere = [sys.executable, "-m", "inflight", "trace", "x", "--data-dir", str(tmp_path)]
    nothing = subprocess.run(elsewhere, capture_output=True, text=True, timeout=60, check=False)
    assert nothing.returncode == 1
    assert "kafka.bootstrap_servers" in nothing.stderr, "there are no tables, so Kafka was asked"
    archive = subprocess.run([*elsewhere, "--source", "delta"], capture_output=True, text=True, timeout=60, check=False)
    assert archive.returncode == 1
    assert "archive.enabled" in archive.stderr
