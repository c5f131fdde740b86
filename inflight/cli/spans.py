"""Implements `spans`: the export of traces to OpenTelemetry (docs/guides/tracing.md)."""

import signal
from typing import Annotated

import typer

from inflight.cli.options import Config, DataDir, JsonLogs, Overrides, load_for_running_system
from streaming.terminal import counted, say


def spans(
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", metavar="URL", help="Of the collector; default: as OTEL_EXPORTER_OTLP_ENDPOINT says."),
    ] = None,
    group: Annotated[str, typer.Option("--group", help="The consumer group that remembers what is exported.")] = "inflight-spans",
    config: Config = None,
    overrides: Overrides = None,
    data_dir: DataDir = None,
    json_logs: JsonLogs = False,
) -> None:
    """Export a span tree for each message that has a sampled `traceparent`, as its receipt comes. Prints `ready spans`.

    Needs the extra inflight[tracing]. Several processes share the work.
    """
    from inflight.cli.kafka_contact import await_kafka
    from inflight.cli.logs import configure_logging
    from inflight.readers import Receipts
    from inflight.tracing.export import export_spans
    from inflight.tracing.otlp import OtlpCollector

    settings = load_for_running_system(config, overrides, data_dir)
    configure_logging(json=json_logs)
    await_kafka(settings.kafka.bootstrap_servers)
    collector = OtlpCollector(endpoint)
    receipts = Receipts(
        settings.kafka.bootstrap_servers,
        group=group,
        prefix=settings.topics.prefix,
        kafka_options=settings.kafka.librdkafka_options(),
    )
    is_stopping = False

    def stop(*_: object) -> None:
        nonlocal is_stopping
        is_stopping = True
        receipts.stop()

    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, stop)
    with receipts:
        say("ready spans")
        count = export_spans(receipts.batches(), collector, is_stopping=lambda: is_stopping)
    collector.close()
    say(f"exported the spans of {counted(count, 'message')}", err=True)
