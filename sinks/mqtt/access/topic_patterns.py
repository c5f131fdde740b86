"""Decides which topics and topic filters are covered by the topic filters of a rule or token."""

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final

_PLACEHOLDER: Final = re.compile(r"\{(username|client_id)\}")


class _Wildcard(Enum):
    ONE = "+"
    REST = "#"


def filled_in(pattern: str, values: dict[str, str]) -> str | None:
    """Replaces `{username}` and `{client_id}`, once. Returns None if such a value is empty: the pattern then allows nothing."""
    if any(not values[name] for name in _PLACEHOLDER.findall(pattern)):
        return None
    return _PLACEHOLDER.sub(lambda found: values[found[1]], pattern)


class TopicPatterns:
    """Several topic filters, of which one has to cover a topic. A wildcard character in `values` is an ordinary character.

    Unlike in a subscription, a wildcard in the first level also covers topics that begin with `$`.
    """

    __slots__ = ("_patterns",)

    def __init__(self, patterns: Iterable[str], values: dict[str, str]) -> None:
        compiled = (_levels(pattern, values) for pattern in patterns)
        self._patterns = tuple(levels for levels in compiled if levels is not None)

    def cover(self, asked: str) -> bool:
        """Returns True if one pattern covers every topic that the topic name or topic filter `asked` matches."""
        levels = asked.split("/")
        return any(_covers(pattern, levels) for pattern in self._patterns)


def _levels(pattern: str, values: dict[str, str]) -> tuple[str | _Wildcard, ...] | None:
    levels: list[str | _Wildcard] = []
    for level in pattern.split("/"):
        if level in ("+", "#"):
            levels.append(_Wildcard(level))
            continue
        text = filled_in(level, values)
        if text is None:
            return None
        levels += text.split("/")
    return tuple(levels)


def _covers(pattern: tuple[str | _Wildcard, ...], asked: list[str]) -> bool:
    for index, level in enumerate(pattern):
        if level is _Wildcard.REST:
            return True  # `a/#` covers `a` too (MQTT 5, 4.7.1.2)
        if index == len(asked):
            return False
        if level is _Wildcard.ONE:
            if asked[index] == "#":
                return False
        elif asked[index] != level or level in ("+", "#"):
            return False
    return len(asked) == len(pattern)
