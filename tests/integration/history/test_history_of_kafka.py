"""Trace, dead letters and replay beside an `inflight up` as it comes, without the archive: Kafka's own topics answer."""

from collections.abc import Iterator

import pytest
from kafka import KafkaProducer

from inflight.demo.up import UpProcess
from tests.integration.history.history_cli import documents, inflight, traced
from tests.integration.history.history_device import AnsweringDevice

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REJECTED = 0x87
FROM_KAFKA = "from the topics of Kafka at 127.0.0.1:"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("history"), "--set", "max_mqueue_len=3") as process:
        yield process


@pytest.fixture(scope="module")
def producer(up: UpProcess) -> Iterator[KafkaProducer]:
    made = KafkaProducer(bootstrap_servers=up.kafka, acks="all")
    yield made
    made.close()


def send(producer: KafkaProducer, client_id: str, message_id: str, payload: bytes) -> None:
    own = [("mqtt-topic", b"cmd/run"), ("message-id", message_id.encode()), ('odd "\\\t\x0b\u00e9', b"\xff")]
    producer.send("inflight.messages", key=client_id.encode(), value=payload, headers=own).get(30)


def test_a_rejected_message_is_traced_listed_shown_and_replayed_once(up: UpProcess, producer: KafkaProducer) -> None:
    with AnsweringDevice(*up.mqtt, "moody", lambda topic, times: REJECTED if times == 1 else 0) as device:
        send(producer, "moody", "message-4711", b"open the door")
        device.await_count(1)
        steps = traced(up, "message-4711", lambda steps: "dead letter" in steps)
        assert steps[0]["step"] == "submitted"
        assert [step["step"] for step in steps[1:] if step["step"] != "queued"] == [
            "accepted", "sent", "refused", "finished", "dead_lettered", "dead letter",
        ]  # fmt: skip
        of_client = documents(up, "trace", "message-4711", "--client", "moody")
        assert of_client == steps

        listed = inflight(up, "dead-letters", "--where", "message_id = 'message-4711'", "--client", "moody")
        assert FROM_KAFKA in listed.stderr
        (letter,) = documents(up, "dead-letters", "--where", "message_id = 'message-4711'")
        assert steps[-1]["detail"].startswith(letter["dead_letter_id"]), "both ways of reading give a dead letter the same id"
        assert "open the door" in inflight(up, "dead-letters", "--show", letter["dead_letter_id"][:10]).stdout

        (result,) = documents(up, "replay", "--client", "moody")
        assert result == {"matched": 1, "sent": 1, "skipped": {}}
        device.await_count(2)
        traced(up, "message-4711", lambda steps: steps.count("finished") == 2 and "dead_letter_replayed" in steps)
        (result,) = documents(up, "replay", "--where", "message_id = 'message-4711'", "--to", "somebody-else")
        assert (result["sent"], list(result["skipped"])) == (0, ["replayed_before"])
        assert device.received == [b"open the door"] * 2


def test_an_empty_answer_says_how_far_back_it_reaches(up: UpProcess) -> None:
    unknown = inflight(up, "trace", "never-sent", fails=True)
    assert "never-sent" in unknown.stderr
    assert "inflight.ledger: 4 partitions" in unknown.stderr
    assert "all there ever were" in unknown.stderr
    assert "Traceback" not in unknown.stderr
    no_tables = inflight(up, "trace", "never-sent", "--source", "delta", fails=True)
    assert "archive.enabled" in no_tables.stderr
