"""Runs `inflight bridge` as a coroutine: the bridge, its connections to the broker and its Kafka clients."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from sinks.bridge.bridge import Bridge
from sinks.bridge.metrics import BridgeCounters
from sinks.bridge.settings import BridgeSettings
from sinks.health import LoopHealth
from sinks.host.broker_clock import BrokerClock
from sinks.host.clock_skew import ClockSkew
from sinks.host.kafka_clients import command_tail, event_log
from sinks.kafka.append import EventLog
from sinks.kafka.tail import CommandTail


async def serve(
    settings: BridgeSettings,
    *,
    on_ready: Callable[[], None] | None = None,
    stop: asyncio.Event,
    counters: BridgeCounters | None = None,
    health: LoopHealth | None = None,
) -> None:
    """Runs a bridge until `stop` is set.

    Once it is ready, nothing that the MQTT broker, a device or Kafka does ends it, except as in Raises.

    Args:
        on_ready: Called once when devices get their messages: it is connected to the broker and owns a partition.
        counters, health: Observed from outside.

    Raises:
        KafkaFailed: No broker of Kafka answers.
        TopicMissing: At the start.
        GroupInstanceTaken: Another process has the same `group_instance_id`. This can come later, after which `stop` is set.
        PartitionsAdded: A topic has got more partitions. `stop` is set.
    """
    counters = counters or BridgeCounters()
    clock = BrokerClock()
    skew = ClockSkew(on_measured=partial(setattr, counters, "clock_skew_seconds"))
    log = event_log(settings, clock, skew, on_partitions_added=stop.set, took=counters.append_seconds.add)
    tail = command_tail(settings, stop.set)
    await tail.await_instance_free()
    await log.start((settings.events_topic, settings.uplink_topic, settings.commands_topic, settings.leases_topic))
    partitions = log.partition_count(settings.commands_topic)
    await run_bridge(
        settings,
        log,
        tail,
        commands_partitions=partitions,
        on_ready=on_ready,
        stop=stop,
        counters=counters,
        health=health,
        clock_ns=clock.now_ns,
    )
    tail.check()
    log.check()


async def run_bridge(
    settings: BridgeSettings,
    log: EventLog,
    tail: CommandTail,
    *,
    commands_partitions: int,
    on_ready: Callable[[], None] | None,
    stop: asyncio.Event,
    counters: BridgeCounters,
    health: LoopHealth | None = None,
    clock_ns: Callable[[], int] = time.time_ns,
) -> None:
    """Runs as `serve` on any Kafka. Closes log and tail.

    Args:
        clock_ns: Returns Unix time in nanoseconds, the same for all bridges and gateways.
    """
    bridge = Bridge(settings, log, tail, counters, commands_partitions=commands_partitions, clock_ns=clock_ns)
    connections = asyncio.ensure_future(bridge.run_connections())
    ready = asyncio.ensure_future(bridge.ready.wait())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        with (health or LoopHealth()).watching(bridge.missing) as check_health:
            await asyncio.wait((ready, stopping, connections), return_when=asyncio.FIRST_COMPLETED)
            check_health()
            if ready.done() and not stop.is_set() and on_ready is not None:
                on_ready()
            await asyncio.wait((stopping, connections), return_when=asyncio.FIRST_COMPLETED)
        if connections.done():
            connections.result()
    finally:
        # 1. devices go offline, 2. DISCONNECT to the broker, 3. the ends of connections into the log, 4. Kafka
        bridge.stop()
        for task in (ready, stopping, connections):
            task.cancel()
        await asyncio.gather(ready, stopping, connections, return_exceptions=True)
        await tail.close(settings.stop_timeout_ms / 1_000)
        await log.close(settings.stop_timeout_ms / 1_000)
