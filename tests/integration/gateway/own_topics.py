"""Topics and a consumer group of its own for one test, on the Kafka that tests share."""

from dataclasses import replace
from typing import Any

from sinks.mqtt.settings import GatewaySettings
from tests.support.kafka_topics import create_topics
from tests.support.shared import SharedKafka


def settings_with_topics(kafka: SharedKafka, name: str, **fields: Any) -> GatewaySettings:
    """Of a gateway on any free port. name: before the names of the topics, which have four partitions each."""
    topics = {topic: f"{name}.{topic}" for topic in ("events", "commands", "uplink", "leases", "messages", "routes")}
    create_topics(kafka.bootstrap_servers, *topics.values(), partitions=4)
    settings = GatewaySettings(
        port=0,
        bootstrap_servers=kafka.bootstrap_servers,
        events_topic=topics["events"],
        commands_topic=topics["commands"],
        uplink_topic=topics["uplink"],
        leases_topic=topics["leases"],
        group_id=name,
        **fields,
    )
    fast_path = replace(
        settings.fast_path, messages_topic=topics["messages"], routes_topic=topics["routes"], group_id=f"{name}-routers"
    )
    return replace(settings, fast_path=fast_path)
