"""Runs a gateway with its listeners and Kafka clients, as one coroutine: `uvloop.run(serve(...))`."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Literal, Protocol

import structlog

from sinks.fast_path.router import KafkaRouter, Router
from sinks.health import LoopHealth
from sinks.host.broker_clock import BrokerClock
from sinks.host.clock_skew import ClockSkew
from sinks.host.kafka_clients import command_tail, event_log
from sinks.kafka.append import EventLog
from sinks.kafka.partitioning import partition_of
from sinks.kafka.tail import CommandTail
from sinks.mqtt.drain import Drain
from sinks.mqtt.gateway import Gateway
from sinks.mqtt.known_tables import RoutingView
from sinks.mqtt.listeners.listeners import Listeners
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from sinks.mqtt.system_topics import SystemTopics
from sinks.routing.kafka_matcher import KafkaMatcher
from sinks.routing.metrics import MatcherCounters
from sinks.routing.session_lookups import SessionLookups
from state.model import ClientId

_log: Final = structlog.get_logger(__name__)
_OWNERSHIP_WARNING_S: Final = 15.0
_POLL_INTERVAL_S: Final = 1.0


class SettingsSource(Protocol):
    def poll(self, apply: Callable[[GatewaySettings], None], *, read_file: bool) -> None:
        """Passes changed settings to `apply`; called once a second. The old ones stay in force if `apply` raises UnusableFile.

        Args:
            read_file: True = read the file even if it has not changed.
        """


async def serve(
    settings: GatewaySettings,
    *,
    on_listening: Callable[[list[tuple[str, int]]], None] | None = None,
    on_ready: Callable[[str, int], None] | None = None,
    stop: asyncio.Event,
    hurry: asyncio.Event | None = None,
    counters: GatewayCounters | None = None,
    matcher_counters: MatcherCounters | None = None,
    reload: asyncio.Event | None = None,
    configuration: SettingsSource | None = None,
    health: LoopHealth | None = None,
) -> None:
    """Runs a gateway until `stop` is set; then it is drained (sinks/mqtt/drain.py), which `hurry` ends early.

    Once it is ready, nothing that a device or Kafka does ends it, except as in Raises.

    Args:
        on_listening: Called before `on_ready`, with host and port of every listener.
        on_ready: Called once with the bound host and port of the first listener when devices can connect.
        counters, matcher_counters, health: Observed from outside.
        reload: Set it to have settings, users, keys and certificates read again even if unchanged; the gateway clears it.
        configuration: None = the settings stay.

    Raises:
        OSError: A port cannot be bound.
        UnusableFile: A file of users, keys or certificates cannot be used.
        KafkaFailed: No broker answers.
        TopicMissing: A topic does not exist.
        GroupInstanceTaken: Another process has the same `group_instance_id`. This can come later, after which `stop` is set.
        PartitionsAdded: A topic has got more partitions. `stop` is set.
    """
    counters, hurry = counters or GatewayCounters(), hurry or asyncio.Event()

    def stop_at_once() -> None:
        """Skips the drain, whose records would be in wrong partitions or in another process's name."""
        hurry.set()
        stop.set()

    clock = BrokerClock()
    skew = ClockSkew(on_measured=partial(setattr, counters, "clock_skew_seconds"))
    log = event_log(settings, clock, skew, on_partitions_added=stop_at_once, took=counters.append_seconds.add)
    tail = command_tail(settings, stop_at_once)
    router = KafkaRouter(settings.fast_path, settings) if settings.fast_path.enabled else None
    matcher = KafkaMatcher(settings.routing, settings, matcher_counters, clock=clock) if settings.routing.enabled else None
    await tail.await_instance_free()
    topics = [settings.events_topic, settings.uplink_topic, settings.leases_topic]
    if settings.fast_path.enabled:
        topics.append(settings.fast_path.wake_ups_topic)
    if settings.routing.enabled:
        topics += [settings.routing.subscriptions_topic, settings.routing.retained_topic, settings.routing.publications_topic]
    await log.start(topics)
    await run_gateway(
        settings,
        log,
        tail,
        on_ready=on_ready,
        stop=stop,
        hurry=hurry,
        counters=counters,
        router=router,
        matcher=matcher,
        reload=reload,
        configuration=configuration,
        on_listening=on_listening,
        health=health,
        clock_ns=clock.now_ns,
        has_brokers_time=clock.has_brokers_time,
        waits=partial(_waits, matcher, log.partition_count, settings.uplink_topic),
    )
    tail.check()
    log.check()


async def run_gateway(
    settings: GatewaySettings,
    log: EventLog,
    tail: CommandTail,
    *,
    on_ready: Callable[[str, int], None] | None,
    stop: asyncio.Event,
    hurry: asyncio.Event | None = None,
    counters: GatewayCounters,
    router: Router | None = None,
    matcher: KafkaMatcher | None = None,
    reload: asyncio.Event | None = None,
    configuration: SettingsSource | None = None,
    on_listening: Callable[[list[tuple[str, int]]], None] | None = None,
    health: LoopHealth | None = None,
    clock_ns: Callable[[], int] = time.time_ns,
    has_brokers_time: Callable[[], bool] = lambda: False,
    waits: Callable[[bytes], bool] = lambda key: False,
) -> None:
    """Runs as `serve` on any Kafka. Closes log, tail, router and matcher.

    Args:
        router: None = no messages are read here.
        matcher: None = no publications are routed here.
        on_listening: Called before `on_ready`, with host and port of every listener.
        clock_ns: Unix time.
        has_brokers_time: Whether it is the same for all gateways.
        waits: Returns True if publications with this key wait for a recipient that is connected and behind.
    """
    lookups: SessionLookups | None = None
    try:
        if matcher is None:
            gateway = Gateway(settings, log, counters, clock_ns=clock_ns, has_brokers_time=has_brokers_time)
        else:
            lookups = SessionLookups(settings.routing, settings, matcher.reader)
            gateway = Gateway(
                settings,
                log,
                counters,
                clock_ns=clock_ns,
                has_brokers_time=has_brokers_time,
                tables=RoutingView(settings.routing, matcher.tables, matcher.has_tables, lambda: clock_ns() // 1_000_000),
                look_up=lookups.ask,
                waits=waits,
                read_to=_read_by_others if router is None else router.read_to,
                newest=_read_by_others if router is None else router.newest,
            )
        listeners = Listeners(settings, gateway.new_socket, counters, gateway.limits.connections)
        host, port = await listeners.open()
        if settings.port <= 0:  # any free one
            gateway.lease.name(f"gateway {host}:{port}")
        if on_listening is not None:
            on_listening(listeners.addresses)
        system = None if matcher is None else _system_publisher(gateway, matcher, clock_ns)
        polling = asyncio.ensure_future(_poll(gateway, listeners, reload or asyncio.Event(), configuration, system))
        tail.start(gateway)
        gateway.start()
        if router is not None:
            router.start(gateway)
        if matcher is not None and lookups is not None:
            matcher.start(gateway)
            lookups.start()
        stopping = asyncio.ensure_future(stop.wait())
        try:
            with (health or LoopHealth()).watching(gateway.missing) as check_health:
                await _until_ready(gateway, stopping)
                check_health()
                if not stop.is_set() and on_ready is not None:
                    on_ready(host, port)
                await stopping
                drain = Drain(gateway, listeners, drain_ms=settings.drain_ms, confirm_ms=settings.stop_timeout_ms)
                drain.begin()
                check_health()
                await drain.run(hurry or asyncio.Event())
        finally:
            stopping.cancel()
            polling.cancel()
            listeners.close()
            gateway.stop()
            gateway.authenticator.close()
    finally:
        timeout_s = settings.stop_timeout_ms / 1_000
        closing = [tail.close(timeout_s), log.close(timeout_s)]
        if router is not None:
            closing.append(router.close(timeout_s))
        if lookups is not None:
            closing.append(asyncio.to_thread(lookups.close, timeout_s))
        if matcher is not None:
            closing.append(matcher.close(timeout_s))
        await asyncio.gather(*closing)


def _read_by_others(client_id: ClientId) -> None:
    """Says that no router of this process reads the client's messages."""


def _waits(matcher: KafkaMatcher | None, partition_count: Callable[[str], int], topic: str, key: bytes) -> bool:
    """Returns True if publications with this key wait, whichever process has the matcher that waits."""
    if matcher is None or not matcher.throttles.waits_any_partition:
        return False
    return matcher.throttles.of_partition(topic, partition_of(key, partition_count(topic))) is not None


def _system_publisher(gateway: Gateway, matcher: KafkaMatcher, clock_ns: Callable[[], int]) -> Callable[[], None]:
    """Returns what publishes the topics of `$SYS` that are due."""
    settings = gateway.settings
    topics = SystemTopics(
        matcher.tables,
        name=gateway.name,
        version=_version(),
        interval_ms=settings.routing.sys_interval_ms,
        began_s=time.monotonic(),
    )

    def publish() -> None:
        if gateway.is_stopping or not gateway.lease.holds():
            return
        connected, is_first = gateway.counters.connections_open, 0 in gateway.partitions
        for due in topics.due(time.monotonic(), clock_ns() // 1_000_000, connected=connected, is_first=is_first):
            gateway.append(settings.routing.publications_topic, due.key, due.value, due.headers, _published)

    return publish


def _published(error: Exception | None) -> None:
    """Does nothing: CommandHost logs what Kafka refuses, and the next numbers come soon."""


def _version() -> str:
    try:
        return version("inflight")
    except PackageNotFoundError:
        return "(not installed)"


async def _poll(
    gateway: Gateway,
    listeners: Listeners,
    reload: asyncio.Event,
    configuration: SettingsSource | None,
    publish_system_topics: Callable[[], None] | None,
) -> None:
    """Polls files, limits and `$SYS` every second, and when `reload` is set."""

    def apply(settings: GatewaySettings) -> None:
        gateway.reconfigure(settings)
        listeners.reconfigure(gateway.settings)

    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reload.wait(), _POLL_INTERVAL_S)
        read_files = reload.is_set()
        reload.clear()
        try:
            if configuration is not None:
                configuration.poll(apply, read_file=read_files)
            gateway.authenticator.poll(read_files=read_files)
            gateway.flush_logs()
            listeners.poll(read_files=read_files)
            gateway.count_load()
            if publish_system_topics is not None:
                publish_system_topics()
        except Exception as error:  # noqa: BLE001 - a bug of ours must not end the reading of new certificates
            _log.error("periodic_checks_failed", exc_info=error, action="please report this")


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
