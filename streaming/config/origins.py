"""Remembers where each configured value came from, so that a wrong one can be found: file and line, variable, or flag."""

import re
from pathlib import Path
from typing import Final

from streaming.config.errors import ConfigurationProblem
from streaming.config.explain import KeyPath, join_key

_TABLE: Final = re.compile(r"\s*(\[\[?)\s*([\w.\-\"]+)\s*\]\]?\s*(#.*)?")
_KEY: Final = re.compile(r"\s*([\w\-.\"]+)\s*=")


class Origins:
    """Collects origins while the layers are read, then problems. file: blamed for what nobody else said."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lines: dict[KeyPath, int] = {}
        self._others: dict[KeyPath, str] = {}
        self.problems: list[ConfigurationProblem] = []

    def remember_lines(self, text: str) -> None:
        """Finds keys in a TOML text. Only for messages: a key that this simple reading misses is reported without its line."""
        table: KeyPath = ()
        counts: dict[str, int] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            if match := _TABLE.fullmatch(line):
                name = match[2].replace('"', "")
                if match[1] == "[[":
                    counts[name] = counts.get(name, -1) + 1
                    table = (name, counts[name])
                else:
                    table = tuple(name.split("."))
                self._lines[table] = number
            elif match := _KEY.match(line):
                self._lines[(*table, *match[1].replace('"', "").split("."))] = number

    def remember(self, key: KeyPath, where: str) -> None:
        """where: the environment variable or flag that set `key`; the last one wins, as in the settings."""
        self._others[key] = where

    def add(self, where: str, key: str, message: str) -> None:
        self.problems.append(ConfigurationProblem(where=where, key=key, message=message))

    def blame(self, key: KeyPath, message: str) -> None:
        """Adds a problem of a key, wherever its value came from, unless it has one already."""
        name = join_key(key)
        if all(problem.key != name for problem in self.problems):
            self.add(self._origin(key), name, message)

    def _origin(self, key: KeyPath) -> str:
        prefixes = [key[:length] for length in range(len(key), 0, -1)]
        for prefix in prefixes:
            if prefix in self._others:
                return self._others[prefix]
        for prefix in prefixes:
            if prefix in self._lines:
                return f"{self._file}:{self._lines[prefix]}"
        return str(self._file)
