"""Topics and a consumer group of its own for one test, on the Kafka that tests share."""

import itertools
from dataclasses import replace
from typing import Any, Final

from sinks.mqtt.settings import GatewaySettings
from tests.support.kafka_topics import create_topics
from tests.support.shared import SharedKafka

_numbers: Final = itertools.count(1)


def settings_on(kafka: SharedKafka, prefix: str, **changed: Any) -> GatewaySettings:
    """Makes settings of a gateway on any free port, with four partitions in each topic. prefix: a word of the test file."""
    name = f"{prefix}-{next(_numbers)}"
    settings = GatewaySettings(
        port=0,
        bootstrap_servers=kafka.bootstrap_servers,
        events_topic=f"{name}.events",
        commands_topic=f"{name}.commands",
        uplink_topic=f"{name}.uplink",
        leases_topic=f"{name}.leases",
        group_id=name,
    )
    fast_path = replace(
        settings.fast_path,
        messages_topic=f"{name}.messages",
        routes_topic=f"{name}.routes",
        wake_ups_topic=f"{name}.wake-ups",
        group_id=f"{name}-routers",
    )
    settings = replace(settings, fast_path=fast_path)
    create_topics(kafka.bootstrap_servers, *topics_of(settings), partitions=4)
    return replace(settings, **changed)


def topics_of(settings: GatewaySettings) -> tuple[str, ...]:
    return (
        settings.events_topic,
        settings.commands_topic,
        settings.uplink_topic,
        settings.leases_topic,
        settings.fast_path.messages_topic,
        settings.fast_path.routes_topic,
        settings.fast_path.wake_ups_topic,
    )
