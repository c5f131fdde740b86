"""Fuzzes what people see, and what they edit: text from outside on each kind of screen, and files that are half written."""

import io
import json
import random
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from sinks.escaping import escaped
from sinks.mqtt.access.errors import UnusableFile
from sinks.mqtt.access.password_file import HASHER, read_password_file
from streaming.config.errors import ConfigurationError
from streaming.config.settings import gateway_settings, load_settings
from streaming.reload.access import lost_access_control
from streaming.terminal import plain, write_json, write_table
from tests.unit.streaming.reload.test_access import CONFIGURATIONS, allowed
from trials.fuzz.mutations import mutated
from trials.fuzz.target import Target

_TEXTS: Final = (
    "plant:key:7",
    "[red]no[/red] markup",
    "\x1b]0;a title of a window\x07\x9b2J",
    "\u202eright to left\u2028a line of its own\u200b\ufeff",
    "ordinary words ümlaut 漢字 🔑",
)
_LAST_PRINTABLE: Final = "|"


class Screens(Target):
    """Tables on a terminal and in a pipe, JSON, and lines of a page or of a log."""

    name = "text on screens"

    def feed(self, dice: random.Random) -> bool:
        known = [text.encode() for text in _TEXTS]
        text = mutated(dice, dice.choice(known), known).decode(errors="replace")
        with redirect_stdout(io.StringIO()) as pipe:
            write_table(["id", "at"], [[text, _LAST_PRINTABLE]])
            write_json([{"id": text}])
        _, row, document = pipe.getvalue().split("\n")[:3]
        assert "".join(escaped(text).split()) in "".join(row.split()), "an id is shown whole"
        assert row.endswith(_LAST_PRINTABLE), "a row is one line"
        assert json.loads(document) == {"id": text}, "a program reads the exact text"
        screen = io.StringIO()
        table = Table(box=None)
        table.add_row(plain(text))
        Console(file=screen, width=80, markup=False, emoji=False, highlight=False).print(table)
        for shown in row, document, screen.getvalue().replace("\n", ""), escaped(text):
            assert shown.isprintable(), "a terminal carries nothing out"
        return text.isprintable()


class HalfWrittenFiles(Target):
    """Configurations and password files that end too early, or in zeros, as after a crash or on a full disk."""

    name = "files half written"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._configuration = directory / "inflight.toml"
        self._passwords = directory / "passwords"
        self._users = "".join(f"user-{number}:{HASHER.hash('secret')}\n" for number in range(3)).encode()
        self._before = []
        for text in CONFIGURATIONS:
            self._configuration.write_text(text, encoding="utf-8")
            settings = load_settings(self._configuration)
            self._before.append((text.encode(), settings, allowed(gateway_settings(settings))))

    def feed(self, dice: random.Random) -> bool:
        return self._passwords_are_read(dice) if dice.random() < 0.5 else self._configuration_is_applied(dice)

    def _passwords_are_read(self, dice: random.Random) -> bool:
        self._passwords.write_bytes(_half(dice, self._users))
        try:
            users = read_password_file(self._passwords, is_reload=True)
        except UnusableFile:
            return False
        assert users, "nobody is left"
        assert all(f"{name}:{hashed}\n".encode() in self._users for name, hashed in users.items()), "a hash of nobody"
        return True

    def _configuration_is_applied(self, dice: random.Random) -> bool:
        data, in_force, before = dice.choice(self._before)
        self._configuration.write_bytes(_half(dice, data))
        try:
            settings = load_settings(self._configuration)
        except ConfigurationError:
            return False
        if lost_access_control(in_force, settings):
            return False
        assert allowed(gateway_settings(settings)) <= before, "devices may do more than before"
        return True


def _half(dice: random.Random, data: bytes) -> bytes:
    """Cuts data off, sometimes at the end of a line, and sometimes fills it up with zeros."""
    length = dice.randint(0, len(data))
    if dice.random() < 0.3:
        length = data.rfind(b"\n", 0, length) + 1
    return data[:length] + (bytes(len(data) - length) if dice.random() < 0.2 else b"")
