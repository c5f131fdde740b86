"""The gateway's side of Kafka when the broker stands still for longer than an append may take."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import Jars
from sinks.kafka.append import KafkaEventLog

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
TOPIC = "inflight.events"
TIMEOUT_MS = 4_000


async def _append(log: KafkaEventLog, value: bytes) -> Exception | None:
    """How the append ended; a TimeoutError if it did not end at all."""
    outcome: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    log.append(TOPIC, b"device", value, None, outcome.set_result)
    return await asyncio.wait_for(outcome, 30)


async def _scenario(kafka: EmbeddedKafka) -> None:
    log = KafkaEventLog(
        bootstrap_servers=kafka.bootstrap_servers, linger_ms=0, timeout_ms=TIMEOUT_MS, max_request_bytes=1_000_000, options={}
    )
    await log.start([TOPIC])
    try:
        assert await _append(log, b"before") is None
        os.kill(kafka.pid, signal.SIGSTOP)
        try:
            assert await _append(log, b"lost in time") is not None
        finally:
            os.kill(kafka.pid, signal.SIGCONT)
        failures = 0
        while await _append(log, b"after") is not None:  # each says at once that the connection is being set up anew
            failures += 1
            assert failures < 200, "the log does not recover"
            await asyncio.sleep(0.1)  # a device's pause before it dials again
        assert await _append(log, b"and on") is None
    finally:
        await log.close(5)


def test_appends_go_on_after_a_broker_that_was_frozen_for_longer_than_an_append_may_take(tmp_path: Path, jars: Jars) -> None:
    with EmbeddedKafka(tmp_path, jars=jars) as kafka:
        from kafka import KafkaAdminClient
        from kafka.admin import NewTopic

        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=1)])
        admin.close()
        asyncio.run(_scenario(kafka))
