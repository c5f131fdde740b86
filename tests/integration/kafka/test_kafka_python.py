"""A consumer that subscribes while an answer without its topics is on its way to it."""

from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import NewTopic
from kafka.cluster import ClusterMetadata

from sinks.kafka.kafka_python import subscribe
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

ANSWER_S = 0.5


def test_it_gets_its_partitions_before_the_next_regular_question(kafka: SharedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = "subscribing"
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.create_topics([NewTopic(topic, 4, 1)])
    admin.close()
    asked: list[Any] = []
    at_once = ClusterMetadata._do_refresh_metadata

    async def slowly(self: Any, node_id: Any) -> None:
        """The question is put together now, and reaches the broker some time after the consumer has subscribed."""
        question = self.metadata_request()
        asked.append(question)
        self.metadata_request = lambda: question
        try:
            while not consumer.subscription():
                await self._manager._net.sleep(ANSWER_S / 10)
            await self._manager._net.sleep(ANSWER_S)
            await at_once(self, node_id)
        finally:
            del self.metadata_request

    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=None)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(ClusterMetadata, "_do_refresh_metadata", slowly)
            consumer._cluster.request_update()
            wait_until(lambda: asked, "a question that does not have the topic")
            assert subscribe(consumer, [topic])
        consumer.poll(timeout_ms=0)
        assert len(consumer.assignment()) == 4
    finally:
        consumer.close()
