"""Reads texts for people out of the source: what is raised, and what is logged. `…` stands for a value."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parent.parent.parent
_ROOMS: Final = ("inflight", "streaming", "sinks", "state")
_LEVELS: Final = {"warning": "warning", "error": "error", "critical": "error", "exception": "error"}


@dataclass(frozen=True, slots=True)
class RaisedError:
    """A sentence that an error has. where: the module, from the root."""

    kind: str
    text: str
    where: str


@dataclass(frozen=True, slots=True)
class LogEvent:
    """An event of a log. action: what to do, or what happens by itself; may be empty."""

    name: str
    level: str
    action: str
    where: str


@cache
def modules() -> list[tuple[str, ast.Module]]:
    """Returns the path from the root, and the syntax tree, of each module of the four packages."""
    paths = [path for room in _ROOMS for path in sorted((_ROOT / room).rglob("*.py"))]
    return [(str(path.relative_to(_ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def text_of(node: ast.expr | None) -> str:
    """Returns a text of the source, with `…` for each value in it; empty = it is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return ""


def raised_errors(root: str, without: frozenset[str]) -> list[RaisedError]:
    """Returns the texts of all errors of a class.

    Args:
        root: Its name; subclasses count too.
        without: Subclasses that do not count, with theirs.
    """
    trees = modules()
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for _, tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def counts(name: str) -> bool:
        return name not in without and (name == root or any(map(counts, bases.get(name, ()))))

    return [
        RaisedError(node.exc.func.id, text, where)
        for where, tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name)
        if node.exc.args and counts(node.exc.func.id) and (text := text_of(node.exc.args[0]))
    ]


def log_events() -> list[LogEvent]:
    """Returns the events that are logged as a warning or an error."""
    return [
        LogEvent(name, _LEVELS[node.func.attr], text_of(keywords.get("action")), where)
        for where, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LEVELS
        if "log" in ast.unparse(node.func.value) and node.args and (name := text_of(node.args[0]))
        for keywords in [{keyword.arg: keyword.value for keyword in node.keywords}]
    ]
