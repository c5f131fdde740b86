"""Implements `bridge`, which serves the devices of a broker."""

import signal

from inflight.cli.options import Config, DataDir, JsonLogs, Overrides, load_for_running_system
from streaming.terminal import say


def bridge(config: Config = None, overrides: Overrides = None, data_dir: DataDir = None, json_logs: JsonLogs = False) -> None:
    """Serve the devices of an MQTT broker that you already run (docs/bridge.md).

    Prints `ready bridge=NAME broker=HOST:PORT` when they get their messages.
    """
    import asyncio

    import uvloop

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
