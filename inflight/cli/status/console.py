"""The command `console`."""

import logging
from typing import Annotated

import typer

from inflight.cli.options import Config, DataDir, JsonLogs, Overrides, load_beside
from inflight.cli.status.command import More


def console(
    allow_replay: Annotated[
        bool, typer.Option("--allow-replay", help="Dead letters can be sent again from the page, as console.allow_replay.")
    ] = False,
    more: More = None,
    data_dir: DataDir = None,
    config: Config = None,
    overrides: Overrides = None,
    json_logs: JsonLogs = False,
) -> None:
    """Serve a web page on this machine: what runs, sessions, the life of a message, dead letters.

    Prints `ready console=http://HOST:PORT/`. It reads Kafka's topics, the checkpoint and metrics ports. `inflight up` has one.
    """
    from inflight.cli.logs import configure_logging
    from inflight.console.app import console_app
    from inflight.console.history import StoredHistory
    from inflight.console.live import Live
    from inflight.console.serving import serve
    from inflight.console.worker import QueryWorker
    from inflight.local.supervised_child import READY
    from inflight.status.observer import Observer
    from streaming.config.sections import OFF

    settings = load_beside(config, [*(overrides or ()), *(["console.allow_replay=true"] if allow_replay else [])], data_dir)
    section = settings.console
    if section.port == OFF:
        raise typer.BadParameter("console.port = -1 turns the console off: give it another one with --set, 0 = any free one")
    configure_logging(json=json_logs)
    # The page says what Kafka does, every two seconds.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    with Live(Observer(settings, more or ())) as live, QueryWorker() as worker:
        app = console_app(settings, live, worker, StoredHistory(settings))
        serve(app, section.host, section.port, on_ready=lambda address: typer.echo(f"{READY} console={address}"))
