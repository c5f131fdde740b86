"""The first engine with routing writes what sessions subscribe to into the topic from which matchers learn it."""

from collections import Counter

import pytest

from state.commands import AcceptConnection
from state.events import Subscribed
from state.model import QoS, Subscription
from state.records.session_marks import ALL_MARKED, mark_key
from state.records.subscriptions import SubscriptionList, decode_subscriptions
from streaming.checkpoint_topics import TopicIds
from streaming.config.settings import Settings
from streaming.engine import stored_subscriptions
from streaming.engine.stored_subscriptions import announce_stored_subscriptions
from streaming.spark_internals.checkpoint import CheckpointFiles
from tests.support.kafka_topics import ReadRecord

CLIENTS = tuple(f"stored-{number}" for number in range(20))
LISTS = {
    client_id: SubscriptionList(
        connection_id=1, version=0, subscriptions=(Subscription(topic_filter=f"t/{client_id}/#", qos=QoS.AT_LEAST_ONCE),)
    )
    for client_id in CLIENTS
}


RECORDS = 2 * len(CLIENTS) + 2
"""A list and a mark of each client, the mark of one without subscriptions, and that all are marked."""


class Interrupted(Exception):
    """Ends the engine between the records and the file that says that they are written."""


def test_stored_subscriptions_are_written_once_also_after_an_interruption(pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.start()
    for client_id, stored in LISTS.items():
        pipeline.connect(client_id)
        pipeline.send_event(client_id, Subscribed(connection_id=1, subscriptions=stored.subscriptions))
    pipeline.connect("without")
    pipeline.commands(lambda found: sum(isinstance(one, AcceptConnection) for one in found) == len(LISTS) + 1)
    pipeline.await_batches(2)
    pipeline.stop()

    topic = pipeline.settings.topics.subscriptions
    settings, files = settings_of(pipeline), CheckpointFiles(pipeline.spark, str(pipeline.checkpoint))

    def announce(topic_id: str) -> None:
        announce_stored_subscriptions(pipeline.spark, files, settings, TopicIds(topics={topic: topic_id}), "")

    def written(count: int) -> list[ReadRecord]:
        return pipeline.read(topic, count)

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointFiles, "write", interrupt)
        with pytest.raises(Interrupted):
            announce("first")
    assert lists_in(written(RECORDS)) == LISTS

    announce("first")  # everything once more: the file was not there
    assert lists_in(written(2 * RECORDS)) == LISTS
    announce("first")
    announce("made anew")
    records = written(3 * RECORDS)
    assert len(records) == 3 * RECORDS, "nothing was written while the topic had all records"
    listed = {name.encode() for name in CLIENTS}
    marked = {mark_key(name) for name in (*CLIENTS, "without")}
    assert Counter(record.key for record in records) == dict.fromkeys((*listed, *marked, ALL_MARKED), 3)


def test_without_routing_the_lists_are_written_again_later(pipeline) -> None:
    files = CheckpointFiles(pipeline.spark, str(pipeline.checkpoint))
    ids = TopicIds(topics={pipeline.settings.topics.subscriptions: "id"})
    announce_stored_subscriptions(pipeline.spark, files, settings_of(pipeline), ids, "")
    assert files.read(stored_subscriptions.FILE) == b"id marks "
    announce_stored_subscriptions(pipeline.spark, files, settings_of(pipeline, routing={"enabled": False}), ids, "")
    assert files.read(stored_subscriptions.FILE) is None


def settings_of(pipeline, **changes: object) -> Settings:
    prefix, _, name = pipeline.settings.topics.subscriptions.rpartition(".")
    assert name == "subscriptions"
    values = {
        "kafka": {"bootstrap_servers": pipeline.bootstrap_servers},
        "topics": {"prefix": prefix},
        "routing": {"enabled": True},
    }
    return Settings(**values | changes)


def interrupt(*_: object) -> None:
    raise Interrupted


def lists_in(records: list[ReadRecord]) -> dict[str, SubscriptionList]:
    lists = [record for record in records if record.key is not None and not record.key.startswith(b"\0")]
    return {(record.key or b"").decode(): decode_subscriptions(record.value or b"") for record in lists}
