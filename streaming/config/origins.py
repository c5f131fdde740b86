"""Remembers where each configured value came from, so that a wrong one can be found: file and line, variable, or flag."""

import re
from pathlib import Path
from typing import Final

from streaming.config.errors import ConfigurationProblem
from streaming.config.explain import join_key
from streaming.config.section import KeyPath

_TABLE: Final = re.compile(r"\s*(\[\[?)\s*([\w.\-]+)\s*\]\]?\s*(#.*)?")
_KEY: Final = re.compile(r"\s*([\w\-.]+)\s*=")


class Origins:
    """Collects origins while the layers are read, then problems. file: blamed for what nobody else said."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._in_file: dict[KeyPath, str] = {}
        self._elsewhere: dict[KeyPath, str] = {}
        self.problems: list[ConfigurationProblem] = []

    def remember_lines(self, file: Path, text: str) -> None:
        """Finds keys in a TOML text. Only for messages: a key that this simple reading misses is reported without its line."""
        table: KeyPath = ()
        counts: dict[str, int] = {}
        for number, line in enumerate(text.replace('"', "").splitlines(), start=1):
            if match := _TABLE.fullmatch(line):
                name = match[2]
                table = tuple(name.split("."))
                if match[1] == "[[":
                    counts[name] = counts.get(name, -1) + 1
                    table = (name, counts[name])
                self._in_file[table] = f"{file}:{number}"
            elif match := _KEY.match(line):
                self._in_file[(*table, *match[1].split("."))] = f"{file}:{number}"

    def remember(self, key: KeyPath, where: str) -> None:
        """Remembers where a key was set outside of the file.

        Args:
            key: The key that was set.
            where: The environment variable or flag that set it. The last one wins, as in the settings.
        """
        self._elsewhere[key] = where

    def add(self, where: str, key: str, message: str) -> None:
        self.problems.append(ConfigurationProblem(where=where, key=key, message=message))

    def blame(self, key: KeyPath, message: str) -> None:
        """Adds a problem of a key, wherever its value came from, unless it has one already."""
        name = join_key(key)
        if all(problem.key != name for problem in self.problems):
            tables = [key[:length] for length in range(len(key), 0, -1)]
            known = [layer[table] for layer in (self._elsewhere, self._in_file) for table in tables if table in layer]
            self.add(known[0] if known else str(self._file), name, message)
