"""The commands of routing on a real Kafka. What engine and matcher would write, the test writes."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from typer.testing import CliRunner

from inflight.cli import app
from inflight.console.history import History
from state.commands import EndSubscriptions
from state.model import QoS, Subscription
from state.records.subscriptions import SubscriptionList, encode_subscriptions, subscriptions_record
from streaming.config.settings import Settings
from streaming.history.errors import NothingFound
from streaming.history.subscriptions import read_retained
from tests.support.kafka_topics import create_topics
from tests.support.shared import SharedKafka

Command = Callable[..., list[dict[str, Any]]]
PREFIX = f"routing-{uuid.uuid4().hex[:8]}"
TOPICS = Settings(topics={"prefix": PREFIX}).topics


@pytest.fixture
def producer(kafka: SharedKafka) -> Iterator[KafkaProducer]:
    routing = TOPICS.messages, TOPICS.publications, TOPICS.subscriptions, TOPICS.retained, TOPICS.throttle
    others = TOPICS.uplink, TOPICS.ledger, TOPICS.receipts, TOPICS.dead_letters
    create_topics(kafka.bootstrap_servers, *routing, *others, partitions=3)
    made = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, acks="all")
    yield made
    made.close()


@pytest.fixture
def inflight(kafka: SharedKafka, producer: KafkaProducer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command, and returns its standard output."""
    monkeypatch.setattr("inflight.cli.send_display.configure_logging", lambda: None)
    options = (f"kafka.bootstrap_servers={kafka.bootstrap_servers}", f"topics.prefix={PREFIX}", "routing.enabled=true")

    def run(*arguments: str) -> str:
        chosen = [word for option in options for word in ("--set", option)]
        result = CliRunner().invoke(app, [*arguments, "--data-dir", str(tmp_path), *chosen])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    return run


def documents(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def subscribe(producer: KafkaProducer, client_id: str, *filters: str, version: int = 1) -> None:
    subscriptions = tuple(Subscription(topic_filter=name, qos=QoS.EXACTLY_ONCE) for name in filters)
    value = encode_subscriptions(SubscriptionList(connection_id=5, version=version, subscriptions=subscriptions))
    producer.send(TOPICS.subscriptions, key=client_id.encode(), value=value).get(30)


def test_subscribers_are_those_of_the_highest_lists(inflight: Callable[..., str], producer: KafkaProducer) -> None:
    subscribe(producer, "north", "plant/+")
    subscribe(producer, "south", "plant/1", version=2)
    subscribe(producer, "south", version=1)
    subscribe(producer, "worker", "$share/crew/plant/#", "alerts")
    subscribe(producer, "gone", "plant/1")
    end = subscriptions_record(TOPICS.subscriptions, "gone", EndSubscriptions(connection_id=5))
    producer.send(end.topic, key=end.key, value=None, headers=[(header.key, header.value) for header in end.headers]).get(30)
    found = documents(inflight("subscriptions", "--topic", "plant/1", "--json"))
    assert [(one["client_id"], one["topic_filter"], one["group"], one["is_online"]) for one in found] == [
        ("north", "plant/+", "", None),
        ("south", "plant/1", "", None),
        ("worker", "plant/#", "crew", None),
    ]
    filters = documents(inflight("subscriptions", "--client", "worker", "--json"))
    assert [one["topic_filter"] for one in filters] == ["plant/#", "alerts"]
    table = inflight("subscriptions", "--topic", "plant/1")
    assert "south" in table
    assert "gone" not in table


def test_the_newest_retained_message_of_each_topic_is_found(producer: KafkaProducer, kafka: SharedKafka, tmp_path: Path) -> None:
    def keep(topic: str, value: bytes | None, **more: bytes) -> None:
        headers = [("mqtt-topic", topic.encode()), *((name.replace("_", "-"), text) for name, text in more.items())]
        producer.send(TOPICS.retained, key=topic.encode(), value=value, headers=headers).get(30)

    keep("plant/1", b"old")
    keep("plant/1", b"new", inflight_id=b"pump:1:1", client_id=b"pump")
    keep("plant/2", b"removed")
    keep("plant/2", None)
    keep("other", b"x")
    chosen = {"kafka": {"bootstrap_servers": kafka.bootstrap_servers}, "topics": {"prefix": PREFIX}}
    settings = Settings(**chosen, engine={"data_dir": str(tmp_path)})
    limits = {"now_ms": int(time.time() * 1_000), "most": 10, "payload_bytes": 100}
    (kept,) = read_retained(settings, "plant/+", lambda done, total: None, **limits)
    assert (kept.topic, kept.payload, kept.publisher, kept.size_bytes) == ("plant/1", "new", "pump", 3)
    with pytest.raises(NothingFound, match="nobody routes"):
        History(Settings(**chosen, routing={"enabled": False})).topic("plant/1", lambda done, total: None)
    found = History(Settings(**chosen)).topic("plant/1", lambda done, total: None)
    assert [one.payload for one in found.retained] == ["new"]
