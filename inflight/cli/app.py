"""Assembles the commands. Heavy imports (PySpark, Kafka, pydantic) are inside the commands, so that `--help` is quick."""

import logging
import signal
from typing import Annotated, Final

import typer

import inflight
from inflight.cli import (
    administration,
    campaign,
    client,
    history,
    presence,
    processes,
    routing,
    sending,
    sessions,
    size,
    spans,
    users,
    what_if,
)
from inflight.cli.extras import extra_not_installed
from inflight.cli.status import command as status
from inflight.cli.status import console
from state.errors import InflightError
from streaming.config.errors import ConfigurationError
from streaming.terminal import say

_LONGEST_REASON: Final = 300


def _print_version(is_asked: bool) -> None:
    if is_asked:
        say(f"inflight {inflight.__version__}")
        raise typer.Exit


app = typer.Typer(
    name="inflight",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version, and end.")
    ] = False,
) -> None:
    """Delivers messages between Kafka and MQTT devices, and accounts for every one."""


app.command()(processes.up)
app.command()(processes.engine)
app.command()(processes.gateway)
app.command()(processes.bridge)
app.command()(processes.matcher)
app.command()(processes.demo)
app.command()(sending.send)
app.command()(sending.cancel)
app.command()(routing.publish)
app.command()(routing.subscriptions)
app.command()(administration.topics)
app.command()(administration.jars)
app.command()(administration.config)
app.command()(size.size)
app.command()(status.status)
app.command()(status.top)
app.command()(console.console)
app.command()(client.client)
app.command()(spans.spans)
app.command()(presence.presence)
history.add_to(app)
app.command()(what_if.what_if)
app.add_typer(campaign.app, name="campaign")
app.add_typer(sessions.app, name="sessions")
app.add_typer(users.app, name="users")


def main() -> None:
    """Runs the command. Exit code 0: done; 1: an error, described on standard error; 2: wrong configuration or usage."""
    logging.getLogger().addHandler(logging.NullHandler())  # without any, libraries' warnings go to standard error
    try:
        app()
    except InflightError as error:
        say(f"inflight: {error}", err=True)
        raise SystemExit(2 if isinstance(error, ConfigurationError) else 1) from None
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # another Ctrl-C ends it silently while its threads end
        raise SystemExit(130) from None
    except ModuleNotFoundError as error:
        say(f"inflight: {extra_not_installed(error) or explain_unexpected(error)}", err=True)
        raise SystemExit(1) from None
    except Exception as error:  # noqa: BLE001 - unexpected, and a traceback helps no user
        say(f"inflight: {explain_unexpected(error)}", err=True)
        raise SystemExit(1) from None


def explain_unexpected(error: Exception) -> str:
    """Returns a sentence for people about an unexpected error, and what to do. Keeps the traceback in a file."""
    import tempfile
    import traceback

    what = str(error).strip().partition("\n")[0][:_LONGEST_REASON]
    if isinstance(error, OSError) and error.filename is not None:
        what = f"{error.filename}: {error.strerror}. Check that path and its permissions"
    else:
        what = f"unexpected {type(error).__name__}: {what}"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="inflight-error-", suffix=".txt", delete=False, encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
    except OSError:  # no room, and nothing that helps
        return f"{what}."
    return f"{what}; {file.name} has the details for a report."
