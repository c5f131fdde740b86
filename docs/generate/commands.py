"""Makes the reference of the command line from its declarations."""

import re
from collections.abc import Iterator
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from docs.generate.markdown import NOTE, code, linked, table
from inflight.cli import app

_HEAD: Final = f"""# Commands

{NOTE}

`inflight COMMAND --help` prints the same.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | an error; standard error says what to do |
| 2 | wrong configuration or usage |
| 3 | the watchdog has ended an engine whose query hung |
| 130 | Ctrl-C |
"""


def page() -> str:
    """Returns the page."""
    root = get_command(app)
    return "\n".join([_HEAD, *_of(root, typer.Context(root, info_name="inflight"), depth=1)]) + "\n"


def _of(command: Any, context: typer.Context, *, depth: int) -> Iterator[str]:
    if depth > 1:
        yield f"\n{'#' * depth} {context.command_path}\n\n{_paragraphs(command.help)}\n"
    rows = list(_rows(command, context))
    if rows or not isinstance(command, TyperGroup):
        pieces = " ".join(piece for piece in command.collect_usage_pieces(context) if piece)
        yield f"```text\n{context.command_path} {pieces}\n```\n"
        yield table(("argument or option", "meaning"), rows)
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            if not inner.hidden:
                yield from _of(inner, typer.Context(inner, info_name=name, parent=context), depth=depth + 1)


def _rows(command: Any, context: typer.Context) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            name, meaning = record
            yield code(re.sub(r"\s+", " ", name).strip("* ")), linked(re.sub(r"\[(?=[a-z])", r"\\[", meaning))


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(linked(" ".join(part.split())) for part in (text or "").replace("\b", "").split("\n\n") if part.strip())
