"""Deletes a topic and makes it anew under the same name, as somebody may who wants to empty it."""

import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

_WITHIN_S = 30.0
_PAUSE_S = 0.2


def recreate_topic(bootstrap_servers: str, topic: str) -> None:
    """Returns when the new topic exists. Raises KafkaException if it does not within half a minute."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    partitions = len(admin.list_topics(topic, _WITHIN_S).topics[topic].partitions)
    admin.delete_topics([topic])[topic].result(_WITHIN_S)
    until_s = time.monotonic() + _WITHIN_S
    while True:
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(_WITHIN_S)
        except KafkaException:  # the old one is still being deleted
            if time.monotonic() > until_s:
                raise
            time.sleep(_PAUSE_S)
        else:
            return
