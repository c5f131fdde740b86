"""An event of a newer version stops an older engine before its micro-batch has any effect; the newer engine continues."""

import json
from dataclasses import replace

import pytest

from state.commands import AcceptConnection, SendPublish
from state.events import PubAckReceived
from state.records.events import encode_event
from streaming.engine.intake import newer_events
from streaming.engine.intake.newer_events import newer_event
from tests.spark.conftest import Pipeline
from tests.spark.next_version import NEXT_VERSION_BYTE, NextVersion, next_version
from tests.support.kafka_topics import read_topic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.servers

BESIDE_IT = next_version(b"a payload may be anything")
CLIENTS = (b"newer", b"other-1", b"other-2", b"other-3")


def planned(pipeline: Pipeline) -> set[str]:
    """The last one may have been cut off by a stop: the next start executes it again."""
    return {path.name for path in (pipeline.checkpoint / "offsets").glob("[0-9]*")}


def committed(pipeline: Pipeline) -> set[str]:
    return {path.name for path in (pipeline.checkpoint / "commits").glob("[0-9]*")}


def written(pipeline: Pipeline) -> list[int]:
    topics = pipeline.settings.topics
    names = (topics.commands, topics.ledger, topics.dead_letters)
    return [len(read_topic(pipeline.bootstrap_servers, name)) for name in names]


@pytest.mark.promise("newer-events")
def test_an_event_of_a_newer_version_waits_for_that_version(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = pipeline.settings.topics
    pipeline.start()
    for client in CLIENTS:
        pipeline.connect(client.decode())
    pipeline.send_message("newer", b"first")
    pipeline.commands(lambda found: sum(isinstance(command, AcceptConnection | SendPublish) for command in found) >= 5)
    pipeline.await_batches(1)
    pipeline.stop()
    before, batches = written(pipeline), planned(pipeline)

    pipeline.send(topics.events, next_version(encode_event(PubAckReceived(connection_id=1, packet_id=1))), key=b"newer")
    for client in CLIENTS[1:]:
        pipeline.send_message(client.decode(), BESIDE_IT)
    query = pipeline.start()
    error = wait_until(query.exception, "the query ends")
    said = newer_event(str(error))
    assert said is not None, error
    assert f"of {topics.events} has version 6, and this Inflight reads 5" in said
    assert written(pipeline) == before
    assert committed(pipeline) <= batches

    monkeypatch.setattr(newer_events, "EVENTS_VERSION_BYTE", NEXT_VERSION_BYTE)
    pipeline.start(NextVersion(pipeline.settings))
    (receipt,) = pipeline.read(topics.receipts, 1)
    assert json.loads(receipt.value or b"")["outcome"] == "delivered"
    assert sorted(publish.payload for publish in pipeline.publishes(4)) == [BESIDE_IT] * 3 + [b"first"]
    assert read_topic(pipeline.bootstrap_servers, topics.dead_letters) == []


def test_newer_events_become_dead_letters_if_configured(pipeline: Pipeline) -> None:
    topics = pipeline.settings.topics
    pipeline.settings = replace(pipeline.settings, stop_at_newer_events=False)
    pipeline.start()
    event = next_version(encode_event(PubAckReceived(connection_id=1, packet_id=1)))
    pipeline.send(topics.events, event, key=b"newer")
    pipeline.send_message("other", event)  # a payload may be anything
    (letter,) = pipeline.read(topics.dead_letters, 1)
    assert letter.value == event
    assert b"record version 6, this Inflight reads 5: start the version" in dict(letter.headers)["x-detail"]
