"""The commands around a broker that somebody already runs: `bridge`, `demo-bridge`."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from inflight.cli.options import Config, DataDir, JsonLogs, Overrides, load_beside


def bridge(config: Config = None, overrides: Overrides = None, data_dir: DataDir = None, json_logs: JsonLogs = False) -> None:
    """Serve the devices of an MQTT broker that you already run (docs/bridge.md).

    Prints `ready bridge=NAME broker=HOST:PORT` when they get their messages.
    """
    import asyncio

    import uvloop

    from inflight.cli.logs import configure_logging
    from inflight.cli.metrics_server import serving_metrics
    from sinks.bridge.metrics import BridgeCollector, BridgeCounters
    from sinks.bridge.process import serve
    from sinks.garbage import spare_what_stays
    from sinks.health import LoopHealth
    from sinks.kafka.librdkafka import KafkaFailed
    from streaming.config.errors import KafkaUnreachable
    from streaming.config.settings import bridge_settings

    everything = load_beside(config, overrides, data_dir)
    settings, metrics = bridge_settings(everything), everything.metrics
    configure_logging(json=json_logs)
    counters, health = BridgeCounters(), LoopHealth()

    def ready() -> None:
        spare_what_stays()
        typer.echo(f"ready bridge={settings.name} broker={settings.host}:{settings.port}{served}")

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


def demo_bridge(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help="Default: a new directory under var/.")
    ] = None,
) -> None:
    """Watch a Mosquitto be restarted, killed and frozen under 50 devices: alone it loses messages, with a bridge it does not."""
    import tempfile

    from rich.console import Console

    from inflight.demo.bridge_run import run_bridge_demo

    if data_dir is None:
        Path("var").mkdir(exist_ok=True)
        data_dir = Path(tempfile.mkdtemp(prefix="demo-bridge-", dir="var"))
    raise SystemExit(run_bridge_demo(data_dir, Console(stderr=True)))
