"""Assembles the commands. Heavy imports (PySpark, Kafka, pydantic) are inside the commands, so that `--help` is quick."""

import sys

import typer

from inflight.cli import administration, bridging, history, processes, sending, sessions, users
from inflight.cli.status import command as status
from inflight.cli.status import console
from state.errors import InflightError
from streaming.config.errors import ConfigurationError

app = typer.Typer(
    name="inflight",
    help="Delivers messages between Kafka and MQTT devices, and accounts for every one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(processes.up)
app.command()(processes.engine)
app.command()(processes.gateway)
app.command()(bridging.bridge)
app.command()(processes.demo)
app.command()(sending.send)
app.command()(administration.topics)
app.command()(administration.jars)
app.command()(administration.config)
app.command()(status.status)
app.command()(status.top)
app.command()(console.console)
history.add_to(app)
app.add_typer(sessions.app, name="sessions")
app.add_typer(users.app, name="users")


def main() -> None:
    """Runs the command. Exit code 0: done; 1: an error, described on standard error; 2: wrong configuration or usage."""
    try:
        app()
    except InflightError as error:
        # Without rich: brackets in a message would be read as markup.
        sys.stderr.write(f"inflight: {error}\n")
        raise SystemExit(2 if isinstance(error, ConfigurationError) else 1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
