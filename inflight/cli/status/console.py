"""Implements `console`."""

import logging
from functools import partial
from typing import Annotated

import typer

from inflight.cli.options import Config, DataDir, JsonLogs, Overrides, load_for_running_system
from inflight.cli.status.command import MoreMetrics
from streaming.terminal import say


def console(
    allow_replay: Annotated[
        bool, typer.Option("--allow-replay", help="Let the page send dead letters again, as console.allow_replay does.")
    ] = False,
    more_metrics: MoreMetrics = None,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
    json_logs: JsonLogs = False,
) -> None:
    """Serve a web page on this machine: what runs, sessions, the life of a message, dead letters.

    Prints `ready console=http://HOST:PORT/`. Reads Kafka's topics, the checkpoint and metrics ports. `inflight up` includes a
    console.
    """
    from inflight.cli.logs import configure_logging
    from inflight.console.app import console_app
    from inflight.console.history import History
    from inflight.console.live import Live
    from inflight.console.overview import PROGRESS_BYTES
    from inflight.console.serving import serve
    from inflight.console.worker import QueryWorker
    from inflight.local.supervised_child import READY
    from inflight.status.observer import Observer
    from streaming.engine.progress import recent_progress
    from streaming.settings import OFF

    settings = load_for_running_system(
        config, [*(overrides or ()), *(["console.allow_replay=true"] if allow_replay else [])], data_dir
    )
    section = settings.console
    if section.port == OFF:
        raise typer.BadParameter("console.port = -1 turns the console off: set another port with --set, 0 = any free one")
    configure_logging(json=json_logs)
    # The page shows the state of Kafka every two seconds, so its client need not log it.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    read_batches = partial(recent_progress, settings.engine.data_dir, limit_bytes=PROGRESS_BYTES)
    observer = Observer(settings, more_metrics or ())
    with (
        Live(observer, read_batches=read_batches, dead_letters_topic=settings.topics.dead_letters) as live,
        QueryWorker() as worker,
    ):
        app = console_app(settings, live, worker, History(settings))
        serve(app, section.host, section.port, on_ready=lambda address: say(f"{READY} console={address}"))
