"""Implements `users`: the users who may connect to gateways with a password. Gateways reload the file within seconds."""

import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from inflight.cli.options import Config, Overrides, load_for_running_system
from streaming.terminal import say

app = typer.Typer(help="Users and passwords of devices: the file gateway.login.password_file.", no_args_is_help=True)

File: TypeAlias = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="The password file; default: gateway.login.password_file.")
]
Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME")]


@app.command()
def add(name: Name, file: File = None, config: Config = None, overrides: Overrides = None) -> None:
    """Add a user or change a password, which is read from the terminal or from the first line of standard input."""
    from sinks.mqtt.access.password_file import HASHER, edit_password_file
    from sinks.mqtt.access.usernames import WHAT_IS_ALLOWED, is_username

    if not is_username(name):
        raise typer.BadParameter(f"a user name has {WHAT_IS_ALLOWED}")
    path = _path(file, config, overrides)
    _users(path)  # complains before it asks for a password
    password = _password()
    if not password:
        raise typer.BadParameter("a password has at least one character")
    hashed, done = HASHER.hash(password), "added"

    def with_user(users: dict[str, str]) -> dict[str, str]:
        nonlocal done
        done = "changed" if name in users else "added"
        return users | {name: hashed}

    edit_password_file(path, with_user)
    say(f"{done} {name} in {path}")


@app.command()
def remove(name: Name, file: File = None, config: Config = None, overrides: Overrides = None) -> None:
    """Remove a user. An existing connection continues until it ends; the next login is refused."""
    from sinks.mqtt.access.password_file import edit_password_file

    path = _path(file, config, overrides)

    def without_user(users: dict[str, str]) -> dict[str, str]:
        if name not in users:
            raise typer.BadParameter(f"{path} has no user {name}")
        return {other: hashed for other, hashed in users.items() if other != name}

    edit_password_file(path, without_user)
    say(f"removed {name} from {path}")


@app.command("list")
def list_users(file: File = None, config: Config = None, overrides: Overrides = None) -> None:
    """List the user names, one a line."""
    for name in sorted(_users(_path(file, config, overrides))):
        say(name)


def _path(file: Path | None, config: Path | None, overrides: list[str] | None) -> Path:
    if file is not None:
        return file
    configured = load_for_running_system(config, overrides, asks_kafka=False).gateway.login.password_file
    if not configured:
        raise typer.BadParameter("give --file FILE, or set gateway.login.password_file")
    return Path(configured)


def _users(path: Path) -> dict[str, str]:
    """Returns password hashes by user name; empty if there is no file yet."""
    from sinks.mqtt.access.password_file import read_password_file

    return read_password_file(path) if path.exists() else {}


def _password() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().removesuffix("\n").removesuffix("\r")
