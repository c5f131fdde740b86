"""Implements the commands that run processes: `up`, `engine`, `gateway`, `bridge`, `demo`."""

import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from inflight.cli.extras import need_engine
from inflight.cli.options import Config, DataDir, JsonLogs, Overrides, load, load_for_running_system, watch_configuration
from streaming.terminal import console, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from inflight.local.endpoints import Endpoints
    from streaming.config.section import KeyPath
    from streaming.config.settings import Settings
    from streaming.engine.progress import BatchProgress
    from streaming.reload.configuration_watch import ConfigurationWatch

_SIGNALLED: Final = 128
"""The exit status of a process that a signal has ended is this and the signal's number, as shells have it."""


AcceptLoss: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Go on without records that are gone unread, because Kafka deleted them or their topic was created again, and "
        "report them.",
    ),
]


def up(
    data_dir: DataDir = None,
    mqtt_port: Annotated[int | None, typer.Option(min=0, max=65_535, help="0 = any free one; default: gateway.port.")] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="0 = any free one; default: that of the last start, at first 9092."),
    ] = None,
    config: Config = None,
    overrides: Overrides = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Start a second engine that waits (docs/operate/standby.md).")
    ] = False,
    accept_loss: AcceptLoss = False,
) -> None:
    """Run everything on this machine: a real Kafka, the engine, a gateway and the console, until Ctrl-C.

    Prints one line on standard output when a device can connect: ready mqtt=HOST:PORT kafka=HOST:PORT

    With [[listeners]] the line names them too, as `inflight gateway` does.

    Ports that are not configured are those of the last start with the same data.
    """
    need_engine()
    import asyncio

    from inflight.local.jars import ensure_jars
    from inflight.local.java import find_java
    from inflight.local.start_checks import KAFKA_PORT, up_faults
    from inflight.local.supervised_child import READY
    from inflight.local.supervisor import Supervisor, UpOptions, serves_console, shown_metrics

    given = [*(overrides or ()), *([] if mqtt_port is None else [f"gateway.port={mqtt_port}"])]
    flags: dict[KeyPath, str] = {KAFKA_PORT: f"--kafka-port {kafka_port}"}
    if mqtt_port is not None:
        flags["gateway", "port"] = f"--mqtt-port {mqtt_port}"
    settings = load(config, given, data_dir, flags=flags, checks=partial(up_faults, kafka_port=kafka_port or 0))
    find_java()
    jars = ensure_jars()
    started = time.monotonic()

    def report(text: str) -> None:
        say(f"[{time.monotonic() - started:6.1f} s] {text}", err=True)

    def announce(endpoints: "Endpoints") -> None:
        say(f"{READY} mqtt={endpoints.mqtt}{_listeners(endpoints.listeners)} kafka={endpoints.kafka}")

    options = UpOptions(
        data_dir=settings.engine.data_dir,
        mqtt_port=mqtt_port,
        kafka_port=kafka_port,
        config=config,
        overrides=tuple(overrides or ()),
        defaults=shown_metrics(settings),
        console=serves_console(settings),
        is_console_port_free=settings.console.port == 0,
        nice=settings.engine.nice,
        standby=standby,
        accept_loss=accept_loss,
        standby_overrides=("metrics.engine_port=0",) if settings.metrics.engine_port > 0 else (),
    )
    asyncio.run(Supervisor(options, jars, say=report, announce=announce).run())


def engine(
    config: Config = None,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    json_logs: JsonLogs = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait with Spark started while another engine works, and take over when it is gone.")
    ] = False,
    accept_loss: AcceptLoss = False,
) -> None:
    """Run the engine: the Spark job that holds the sessions. Prints `ready engine` when it works.

    With --standby it prints `ready standby` while it waits for another engine with the same checkpoint (docs/operate/standby.md).

    Policies, exchanges and session settings are reloaded when the configuration file changes, and on SIGHUP.
    """
    need_engine()
    import threading

    from inflight.cli.kafka_contact import await_kafka
    from inflight.cli.logs import configure_logging
    from inflight.local.start_checks import engine_faults

    watch = watch_configuration(config, overrides, data_dir)
    settings = load(config, overrides, data_dir, checks=partial(engine_faults, is_standby=standby))
    configure_logging(json=json_logs)
    stop = threading.Event()
    is_ready = False
    at_interrupt: list[Callable[[], None]] = []

    def interrupt(number: int, _frame: object) -> None:
        if is_ready:
            # A thread sets the event, because the handler may interrupt the thread that holds the event's lock.
            threading.Thread(target=stop.set).start()
        else:
            # Spark cannot be stopped while it starts. The JVM ends with its standard input, and the checkpoint survives.
            for call in at_interrupt:
                call()
            os.write(2, b"inflight: interrupted during the start; nothing is lost\n")
            os._exit(_SIGNALLED + number)

    def ready(role: str) -> None:
        nonlocal is_ready
        is_ready = True
        say(f"ready {role}{served}")

    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, interrupt)
    if not os.isatty(0):  # on a terminal SIGHUP means that the terminal was closed
        signal.signal(signal.SIGHUP, lambda *_: watch.ask())  # reads the configuration again
    await_kafka(settings.kafka.bootstrap_servers, probes=[(settings.metrics.host, settings.metrics.engine_port)])
    from inflight.local.spark_jars import spark_jars
    from streaming.engine.spark_launch import launch_engine_jvm
    from streaming.spark_internals.jvm_launch import under_spark_submit

    jars = None if under_spark_submit() else spark_jars()
    with suppress(OSError):  # raised again, with what to do, where Spark is started
        launch_engine_jvm(settings, jars)  # it starts while the imports below take a second
    from inflight.cli.metrics_server import serving_metrics
    from inflight.local.engine_addresses import announced_engine
    from streaming.engine.lifecycle.losses import Losses
    from streaming.engine.lifecycle.standby import Standby
    from streaming.engine.metrics import EngineCollector
    from streaming.engine.run import run_engine
    from streaming.engine.watching.full_disk import free_disk_of, naming_full_disks
    from streaming.engine.watching.health import EngineHealth
    from streaming.engine.watching.repeated_ends import EndCounter
    from streaming.engine.watching.watchdog import report_hangs

    ends = EndCounter(settings, is_standby=standby)
    at_interrupt.append(ends.stop_asked)
    health = EngineHealth(settings)
    none_lost = dict.fromkeys((settings.topics.messages, settings.topics.events), 0)
    collector = EngineCollector(
        is_standby=lambda: health.is_standby,
        hangs=report_hangs(settings.engine.data_dir).count,
        ends_in_a_row=lambda: ends.count,
        lost_records=lambda: none_lost | Losses.read(settings.engine.data_dir).records,
        free_disk_bytes=free_disk_of(settings.checkpoint_location),
    )

    def wait() -> None:
        health.is_standby = True
        ready("standby")

    def take_over() -> None:
        health.is_standby = False
        ends.begin()

    def observe(batch: "BatchProgress") -> None:
        collector.observe(batch)
        ends.observe(batch)

    with (
        ends,
        serving_metrics(
            settings.metrics.host, settings.metrics.engine_port, "engine_port", collector, health, may_move=standby
        ) as served,
        announced_engine(settings.engine.data_dir, served, may_wait=standby),
        naming_full_disks(settings),
    ):
        run_engine(
            settings,
            jars=jars,
            on_ready=partial(ready, "engine"),
            stop=stop,
            standby=Standby(on_wait=wait, on_takeover=take_over) if standby else None,
            accept_loss=accept_loss,
            on_progress=observe,
            on_leases=collector.observe_leases,
            on_lag=collector.observe_lag,
            on_misplaced=collector.observe_misplaced,
            on_session_stats=collector.observe_session_stats,
            new_settings=watch.changed,
            health=health,
        )


def gateway(
    config: Config = None,
    overrides: Overrides = None,
    json_logs: JsonLogs = False,
    number: Annotated[int | None, typer.Option(hidden=True, min=1, help="Number of this process if there are several.")] = None,
) -> None:
    """Run one gateway: the MQTT listeners. Prints `ready mqtt=HOST:PORT` when devices can connect.

    The address is that of the first listener. `listeners=` follows with the addresses of [[listeners]], if there are any.

    SIGTERM or Ctrl-C drains it: it closes its connections in groups (gateway.drain_ms) and ends. A second one closes all at once.

    Limits, rules and login methods are reloaded when the configuration file changes, and on SIGHUP. Users, keys and certificates
    are reloaded with their files. With gateway.processes several processes share the ports.
    """
    from inflight.cli.kafka_contact import await_kafka
    from inflight.cli.logs import configure_logging
    from inflight.local.errors import CannotListen
    from inflight.local.gateway_processes import metrics_port, process_count
    from inflight.local.start_checks import gateway_faults
    from sinks.kafka.librdkafka import KafkaFailed
    from streaming.config.errors import KafkaUnreachable

    watch = watch_configuration(config, overrides)
    settings = load(config, overrides, checks=partial(gateway_faults, is_one_of_several=number is not None))
    configure_logging(json=json_logs, process=number)
    count = process_count(settings) if number is None else 1
    ports = [metrics_port(settings.metrics.gateway_port, one) for one in range(number or 1, (number or 1) + count)]
    await_kafka(settings.kafka.bootstrap_servers, probes=[(settings.metrics.host, port) for port in ports])
    try:
        if count > 1:
            _run_gateway_processes(settings, count, _repeated_options(config, overrides, json_logs=json_logs))
        else:
            _run_gateway(watch, settings, number)
    except KafkaFailed as error:
        raise KafkaUnreachable.of(settings.kafka.bootstrap_servers, error) from error
    except OSError as error:
        where = error.filename or f"{settings.gateway.host}:{settings.gateway.port}"
        raise CannotListen(
            f"cannot listen on {where}: {error.strerror or error}. "
            "Choose another port (0 = any free one) in [gateway] or [[listeners]], or stop what is listening there."
        ) from error


def _run_gateway(watch: "ConfigurationWatch", everything: "Settings", number: int | None) -> None:
    """Runs one gateway process.

    Args:
        number: Number of this process; None = it is the only one.
    """
    import asyncio
    from dataclasses import replace

    import uvloop

    from inflight.cli.metrics_server import serving_metrics
    from inflight.local.gateway_processes import metrics_port
    from inflight.local.supervised_child import READY
    from sinks.garbage import freeze_startup_heap
    from sinks.health import LoopHealth
    from sinks.mqtt.metrics import GatewayCollector, GatewayCounters
    from sinks.mqtt.process import serve
    from sinks.routing.metrics import MatcherCounters
    from streaming.config.settings import gateway_settings
    from streaming.reload.gateway import GatewayReload

    settings, metrics, port = gateway_settings(everything), everything.metrics, everything.metrics.gateway_port
    if number is not None:
        own = None if settings.group_instance_id is None else f"{settings.group_instance_id}-{number}"
        settings, port = replace(settings, shares_ports=True, group_instance_id=own), metrics_port(port, number)
    counters, health = GatewayCounters(), LoopHealth()
    matcher_counters = MatcherCounters() if settings.routing.enabled else None

    addresses: list[tuple[str, int]] = []

    def ready(host: str, port: int) -> None:
        freeze_startup_heap()
        others = addresses[len(addresses) - len(settings.listeners) :]
        urls = [listener.url(*address) for listener, address in zip(settings.listeners, others, strict=True)]
        say(f"{READY} mqtt={host}:{port}{_listeners(','.join(urls))}{served}")

    async def run() -> None:
        stop, hurry, reload = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for signal_number in signal.SIGINT, signal.SIGTERM:
            asyncio.get_running_loop().add_signal_handler(signal_number, lambda: (hurry if stop.is_set() else stop).set())
        if not os.isatty(0):  # as in `engine`
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.set)
        await serve(
            settings,
            on_listening=addresses.extend,
            on_ready=ready,
            stop=stop,
            hurry=hurry,
            counters=counters,
            matcher_counters=matcher_counters,
            reload=reload,
            configuration=GatewayReload(everything, new=watch.changed, ask=watch.ask),
            health=health,
        )

    with serving_metrics(metrics.host, port, "gateway_port", GatewayCollector(counters, matcher_counters), health) as served:
        uvloop.run(run())


def _run_gateway_processes(settings: "Settings", count: int, arguments: list[str]) -> None:
    import asyncio
    from collections.abc import Sequence

    import structlog

    from inflight.local.gateway_processes import GatewayProcesses
    from inflight.local.supervised_child import READY
    from streaming.config.settings import gateway_settings

    log = structlog.get_logger(__name__)

    def announce(mqtt: str, listeners: str, metrics: Sequence[str]) -> None:
        served = f" metrics={','.join(metrics)}" if metrics else ""
        say(f"{READY} mqtt={mqtt}{_listeners(listeners)}{served}")

    async def run() -> None:
        await GatewayProcesses(gateway_settings(settings), count, arguments, say=log.warning, announce=announce).run()

    asyncio.run(run())


def _listeners(urls: str) -> str:
    """Returns the word of the ready line with the addresses of [[listeners]]; empty without them."""
    return f" listeners={urls}" if urls else ""


def _repeated_options(config: Path | None, overrides: list[str] | None, *, json_logs: bool) -> list[str]:
    """Returns the options of this command for its child processes."""
    given = [] if config is None else ["--config", str(config)]
    given += [word for override in overrides or () for word in ("--set", override)]
    return [*given, *(["--json-logs"] if json_logs else [])]


def bridge(config: Config = None, overrides: Overrides = None, data_dir: DataDir = None, json_logs: JsonLogs = False) -> None:
    """Serve the devices of an MQTT broker that you already run (docs/guides/bridge.md).

    Prints `ready bridge=NAME broker=HOST:PORT` when they get their messages.
    """
    import asyncio

    import uvloop

    from inflight.cli.kafka_contact import await_kafka
    from inflight.cli.logs import configure_logging
    from inflight.cli.metrics_server import serving_metrics
    from inflight.local.start_checks import bridge_faults
    from sinks.bridge.metrics import BridgeCollector, BridgeCounters
    from sinks.bridge.process import serve
    from sinks.garbage import freeze_startup_heap
    from sinks.health import LoopHealth
    from sinks.kafka.librdkafka import KafkaFailed
    from streaming.config.errors import KafkaUnreachable
    from streaming.config.settings import bridge_settings

    everything = load_for_running_system(config, overrides, data_dir, checks=bridge_faults)
    settings, metrics = bridge_settings(everything), everything.metrics
    configure_logging(json=json_logs)
    await_kafka(settings.bootstrap_servers, probes=[(metrics.host, metrics.bridge_port)])
    counters, health = BridgeCounters(), LoopHealth()

    def ready() -> None:
        freeze_startup_heap()
        say(f"ready bridge={settings.name} broker={settings.host}:{settings.port}{served}")

    async def run() -> None:
        stop = asyncio.Event()
        for number in signal.SIGINT, signal.SIGTERM:
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(settings, on_ready=ready, stop=stop, counters=counters, health=health)

    try:
        with serving_metrics(metrics.host, metrics.bridge_port, "bridge_port", BridgeCollector(counters), health) as served:
            uvloop.run(run())
    except KafkaFailed as error:
        raise KafkaUnreachable.of(settings.bootstrap_servers, error) from error


def matcher(config: Config = None, overrides: Overrides = None, data_dir: DataDir = None, json_logs: JsonLogs = False) -> None:
    """Route publications to the clients that subscribe to their topics, beside the gateways, each of which does it, too.

    Prints `ready matcher` when it works. SIGTERM or Ctrl-C: it finishes what it has read, and ends.
    """
    import asyncio
    from dataclasses import replace

    import uvloop

    from inflight.cli.kafka_contact import await_kafka
    from inflight.cli.logs import configure_logging
    from inflight.cli.metrics_server import serving_metrics
    from inflight.local.start_checks import matcher_faults
    from sinks.garbage import freeze_startup_heap
    from sinks.health import LoopHealth
    from sinks.kafka.librdkafka import KafkaFailed
    from sinks.routing.metrics import MatcherCollector, MatcherCounters
    from sinks.routing.process import serve_matcher
    from streaming.config.errors import KafkaUnreachable
    from streaming.config.settings import gateway_settings

    everything = load_for_running_system(config, overrides, data_dir, checks=matcher_faults)
    # A gateway with this configuration has its name in the matchers' group.
    settings, metrics = replace(gateway_settings(everything), group_instance_id=None), everything.metrics
    configure_logging(json=json_logs)
    await_kafka(settings.bootstrap_servers, probes=[(metrics.host, metrics.matcher_port)])
    counters, health = MatcherCounters(), LoopHealth()

    def ready() -> None:
        freeze_startup_heap()
        say(f"ready matcher{served}")

    async def run() -> None:
        stop = asyncio.Event()
        for number in signal.SIGINT, signal.SIGTERM:
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve_matcher(settings.routing, settings, on_ready=ready, stop=stop, counters=counters, health=health)

    try:
        with serving_metrics(metrics.host, metrics.matcher_port, "matcher_port", MatcherCollector(counters), health) as served:
            uvloop.run(run())
    except KafkaFailed as error:
        raise KafkaUnreachable.of(settings.bootstrap_servers, error) from error


def demo(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help="Default: a new directory under var/.")
    ] = None,
) -> None:
    """Watch it work: misbehaving devices, an engine that is killed, and a count of what arrived."""
    need_engine()
    import tempfile

    from inflight.demo.run import run_demo
    from inflight.local.class_data_sharing import has_class_archives, make_class_archives_later
    from inflight.local.jars import ensure_jars

    if data_dir is None:
        Path("var").mkdir(exist_ok=True)
        data_dir = Path(tempfile.mkdtemp(prefix="demo-", dir="var"))
    jars = ensure_jars()
    code = run_demo(data_dir, console(stderr=True))
    if not has_class_archives(jars):
        make_class_archives_later(data_dir / "class-archives.log")
        say("In the background Java prepares later starts, so that they are faster (half a minute, once).", err=True)
    raise SystemExit(code)
