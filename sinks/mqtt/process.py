"""The gateway, its listening socket, and Kafka around it, as one coroutine. Run it with `uvloop.run(serve(...))`."""

import asyncio
from collections.abc import Callable
from typing import Final, Literal

import structlog

from sinks.health import LoopHealth
from sinks.kafka.append import EventLog, KafkaEventLog
from sinks.kafka.tail import CommandTail, KafkaCommandTail
from sinks.mqtt.gateway import Gateway
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings

_log: Final = structlog.get_logger(__name__)
_RECORD_OVERHEAD_BYTES: Final = 65_536
_OWNERSHIP_WARNING_S: Final = 15.0


async def serve(
    settings: GatewaySettings,
    *,
    on_ready: Callable[[str, int], None] | None = None,
    stop: asyncio.Event,
    counters: GatewayCounters | None = None,
    health: LoopHealth | None = None,
) -> None:
    """Run a gateway until `stop` is set.

    on_ready: called once with the bound host and port when devices can connect. counters, health: to watch from outside.
    Raises OSError when the port cannot be bound, kafka.errors.KafkaError when no broker answers, TopicMissing, GroupInstanceTaken
    when another process has the same `group_instance_id`, also later, PartitionsAdded when a topic gets more partitions: `stop`
    is set then.
    Otherwise nothing that a device or Kafka does ends it once it is ready.
    """
    log = KafkaEventLog(
        bootstrap_servers=settings.bootstrap_servers,
        linger_ms=settings.producer_linger_ms,
        timeout_ms=settings.append_timeout_ms,
        max_request_bytes=settings.max_packet_size_bytes + _RECORD_OVERHEAD_BYTES,
        options=settings.kafka_options,
        on_partitions_added=stop.set,
    )
    tail = KafkaCommandTail(
        bootstrap_servers=settings.bootstrap_servers,
        topic=settings.commands_topic,
        group_id=settings.group_id,
        group_instance_id=settings.group_instance_id,
        session_timeout_ms=settings.group_session_timeout_ms,
        fetch_max_wait_ms=settings.fetch_max_wait_ms,
        options=settings.kafka_options,
        on_taken=stop.set,
    )
    await tail.await_instance_free()
    await log.start((settings.events_topic, settings.uplink_topic, settings.leases_topic))
    await run_gateway(settings, log, tail, on_ready=on_ready, stop=stop, counters=counters or GatewayCounters(), health=health)
    tail.check()
    log.check()


async def run_gateway(
    settings: GatewaySettings,
    log: EventLog,
    tail: CommandTail,
    *,
    on_ready: Callable[[str, int], None] | None,
    stop: asyncio.Event,
    counters: GatewayCounters,
    health: LoopHealth | None = None,
) -> None:
    """`serve` on any Kafka. Closes log and tail."""
    gateway = Gateway(settings, log, counters)
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(gateway.new_socket, settings.host, settings.port, backlog=1_024)
        tail.start(gateway)
        gateway.lease.start()
        stopping = asyncio.ensure_future(stop.wait())
        try:
            with (health or LoopHealth()).watching(gateway.missing):
                await _until_ready(gateway, stopping)
                if not stop.is_set() and on_ready is not None:
                    host, port = server.sockets[0].getsockname()[:2]
                    on_ready(host, port)
                await stopping
        finally:
            # 1. nobody new, 2. goodbye to everybody, 3. the farewells into the log, 4. Kafka
            stopping.cancel()
            server.close()
            gateway.stop()
    finally:
        await tail.close(settings.stop_timeout_ms / 1_000)
        await log.close(settings.stop_timeout_ms / 1_000)


async def _until_ready(gateway: Gateway, stopping: "asyncio.Future[Literal[True]]") -> None:
    ready = asyncio.ensure_future(gateway.ready.wait())
    try:
        while not ready.done() and not stopping.done():
            done, _ = await asyncio.wait((ready, stopping), timeout=_OWNERSHIP_WARNING_S, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                _log.warning(
                    "no_partition_yet",
                    topic=gateway.settings.commands_topic,
                    has_lease=gateway.lease.holds(),
                    action="check that the topic exists and has at least as many partitions as there are gateways",
                )
    finally:
        ready.cancel()
