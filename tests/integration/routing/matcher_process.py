"""A matcher in a process of its own, which a test kills: python -m tests.integration.routing.matcher_process SERVERS PREFIX.

It commits nothing but where it began, so that its successor routes everything once more.
"""

import sys
import threading

from sinks.routing import source_consumer
from sinks.routing.kafka_matcher import KafkaMatcher
from tests.integration.routing.routed_topics import host_settings, routing_settings

if __name__ == "__main__":
    source_consumer._COMMIT_INTERVAL_S = 3_600.0  # type: ignore[misc]
    servers, prefix = sys.argv[1:]
    KafkaMatcher(routing_settings(prefix), host_settings(servers)).start()
    threading.Event().wait()
