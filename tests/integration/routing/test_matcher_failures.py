"""The matcher when its broker stands still."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import Jars
from sinks.routing.kafka_matcher import KafkaMatcher
from tests.integration.routing.routed_topics import PARTITIONS, RoutedTopics
from tests.support.processes import frozen
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]
TIMEOUT_MS = 2_000
FROZEN_S = 3.0
"""The matcher gives its clients up meanwhile, if it waits for a confirmation."""
COUNT = 2_000
STOPS = (500, 1_200)


@pytest.fixture
def broker(jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path_factory.mktemp("frozen"), jars=jars) as running:
        yield running


@pytest.mark.promise("matcher-dies")
def test_a_broker_that_stands_still_costs_time_and_no_publication(broker: EmbeddedKafka) -> None:
    topics = RoutedTopics(broker.bootstrap_servers, "still")
    matcher = KafkaMatcher(topics.settings, replace(topics.host, append_timeout_ms=TIMEOUT_MS))
    matcher.start()
    try:
        wait_until(lambda: matcher.counters.partitions_owned == 3 * PARTITIONS, "the matcher owns partitions")
        topics.subscribe("client", "t")
        for number in range(COUNT):
            topics.start_publishing("t", b"%d" % number)
            if number in STOPS:
                with frozen(broker.pid):  # records are on their way to it, and confirmations from it
                    time.sleep(FROZEN_S)
        copies = topics.copies(at_least=COUNT)
    finally:
        asyncio.run(matcher.close(30))
    found = list(dict.fromkeys((copy.routing.mark, int(copy.value or b"")) for copy in copies))
    assert sorted(number for _, number in found) == list(range(COUNT))
    assert [mark for mark, _ in found] == sorted(mark for mark, _ in found), "in the order of the uplink"
