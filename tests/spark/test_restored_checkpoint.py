"""A copy of the checkpoint, made with `cp -a` while the engine stood still, is put back after the engine has gone on."""

import shutil
import signal
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaAdminClient, TopicPartition

from state.commands import OfferPublish
from state.events import PublishReceived, PubRelReceived
from state.records.commands import decode_command_batch
from tests.spark.child_engine import Engine, engine
from tests.spark.engine_topics import EngineTopics
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(500)]


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", source, target], check=True)


def publish(topics: EngineTopics) -> None:
    """A QoS 2 publication of the device."""
    for event in (
        PublishReceived(connection_id=1, packet_id=9, topic="up", payload=b"up"),
        PubRelReceived(connection_id=1, packet_id=9),
    ):
        topics.send_event(event)


def delivered(topics: EngineTopics, *payloads: bytes) -> Counter[str]:
    """Returns how often each message was delivered, once all of these are."""

    def outcomes(records: list[ReadRecord]) -> Counter[str]:
        receipts = [msgspec.json.decode(record.value or b"") for record in records]
        return Counter(receipt["message_id"] for receipt in receipts if receipt["outcome"] == "delivered")

    wanted = {payload.decode() for payload in payloads}
    return outcomes(read_topic(topics.kafka, f"{topics.prefix}.receipts", lambda found: outcomes(found).keys() >= wanted))


def answer_until_delivered(topics: EngineTopics, wanted: set[str]) -> None:
    """The device of the second connection acknowledges what it gets, until all of these are delivered."""
    answered: set[int] = set()

    def all_answered() -> bool:
        for number, one in enumerate(topics.sent(0)):
            if one.connection_id == 2 and number not in answered:
                answered.add(number)
                topics.acknowledge(one)
        return wanted <= delivered(topics).keys()

    wait_until(all_answered, f"{wanted} are delivered")


def again(topics: EngineTopics) -> list[tuple[int, int]]:
    """Connection and sequence number of what was said by more than one code."""
    codes: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for record in read_topic(topics.kafka, f"{topics.prefix}.commands"):
        batch = decode_command_batch(record.value or b"")
        for command in batch.commands:
            if not isinstance(command, OfferPublish):
                codes[command.connection_id, command.sequence].add(batch.code)
    return [number for number, found in codes.items() if len(found) > 1]


@pytest.mark.promise("restored-checkpoint")
def test_an_older_copy_loses_nothing_and_repeats_only_what_came_after_it(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = EngineTopics(kafka, "restored")
    settings, checkpoint, backup = topics.settings(tmp_path), tmp_path / "checkpoint", tmp_path / "backup"
    with engine(settings) as first:
        topics.connect(1)
        topics.deliver(b"before", before=0)
        assert first.stop() == 0
    copy(checkpoint, backup)

    with engine(settings) as second:
        topics.deliver(b"after", before=1)
        publish(topics)
        topics.send(b"unanswered")
        topics.sent(3)
        read_topic(topics.kafka, f"{topics.prefix}.uplink", lambda found: len(found) >= 1)
        assert second.stop() == 0
    shutil.rmtree(checkpoint)
    copy(backup, checkpoint)
    topics.send(b"unread")
    topics.connect(2)

    with engine(settings) as third:
        answer_until_delivered(topics, {"after", "unanswered", "unread"})
        assert third.stop() == 0
        assert "checkpoint_is_older" in third.read_log()
    times = delivered(topics, b"before", b"after", b"unanswered", b"unread")
    assert (times["before"], times["unanswered"], times["unread"]) == (1, 1, 1)
    assert times["after"] <= 2, "once before the copy was put back, perhaps once after it"
    assert [one.payload for one in topics.sent(0)].count(b"before") == 1
    assert again(topics), "and gateways know that it is not a repetition"
    published = read_topic(topics.kafka, f"{topics.prefix}.uplink")
    assert len({dict(record.headers)["inflight-id"] for record in published}) == 1, "copies are known by their id"

    shutil.rmtree(checkpoint)
    copy(backup, checkpoint)
    admin = KafkaAdminClient(bootstrap_servers=topics.kafka)
    partitions = admin.describe_topics([f"{topics.prefix}.messages"])[0]["partitions"]
    admin.delete_records({TopicPartition(f"{topics.prefix}.messages", number): -1 for number in range(len(partitions))})
    admin.close()
    said = Engine(settings).await_failure()
    assert "RecordsGone" in said
    assert "Kafka no longer has what the checkpoint" in said


def test_a_copy_of_an_engine_that_stood_still_for_it_loses_nothing(kafka: SharedKafka, tmp_path: Path) -> None:
    """docs/operate/disasters.md: an hourly copy without a stop, put back after the disk of the checkpoint was lost."""
    topics = EngineTopics(kafka, "frozen-copies")
    settings, checkpoint, backup = topics.settings(tmp_path), tmp_path / "checkpoint", tmp_path / "backup"
    with engine(settings) as first:
        topics.connect(1)
        topics.deliver(b"before", before=0)
        for number in range(6):  # while micro-batches run
            topics.send(b"during-%d" % number)
            shutil.rmtree(backup, ignore_errors=True)
            first.signal_all(signal.SIGSTOP)
            copy(checkpoint, backup)
            first.signal_all(signal.SIGCONT)
        topics.sent(7)
        topics.send(b"after")
        topics.acknowledge(topics.sent(8)[-1])
        delivered(topics, b"after")
        first.signal_all(signal.SIGKILL)  # its machine is gone
    checkpoint.rename(tmp_path / "lost")
    copy(backup, checkpoint)
    topics.connect(2)
    wanted = {"before", "after", *(f"during-{number}" for number in range(6))}
    with engine(settings) as second:
        answer_until_delivered(topics, wanted)
        assert second.stop() == 0
    times = delivered(topics)
    assert (times["before"], times.keys() - wanted) == (1, set())
    assert [times[f"during-{number}"] for number in range(6)] == [1] * 6, "none of them was acknowledged before the copy"
