"""Lists the facts that the written pages hold, so that a shortened or merged page shows in the list what it has lost.

A fact is a line without the name of its page: a page may move, and a fact may stand on another one. A lost fact is a deleted line
in the change of docs/project/facts.txt. Generated pages, decisions and logs of measurements are left out: code holds the facts of
the first, and the others hold reasons.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from typer.main import get_command

from docs.generate.markdown import NOTE
from inflight.cli import app
from streaming.config.explain import known_keys
from streaming.config.settings import Settings

_DOCS: Final = Path(__file__).parent.parent
_LEFT_OUT: Final = ("decisions/", "project/performance_log.md", "project/results/")
_CODE: Final = re.compile(r"`([^`\n]+)`")
_PATTERNS: Final = {
    "reason code": re.compile(r"\b0x[0-9A-F]{2}\b"),
    "metric": re.compile(r"\binflight_[a-z_]+[a-z]\b"),
    "topic": re.compile(r"\b(?:inflight|PREFIX)\.(?!cli|json|lock|toml)[a-z][a-z-]+[a-z]\b"),
    "statement of the standard": re.compile(r"\[MQTT-[0-9.]+-[0-9]+\]"),
}
_RULE: Final = re.compile(r"\b(?:must|never|cannot|exactly once|at least once|at most once)\b", re.IGNORECASE)
_END: Final = re.compile(r"(?<=[.:;!?])\s+|\s\|\s|\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.))")
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def written_pages() -> dict[str, str]:
    """Returns the pages that people write, by their paths in docs/."""
    paths = (path.relative_to(_DOCS).as_posix() for path in sorted(_DOCS.rglob("*.md")))
    pages = {path: (_DOCS / path).read_text(encoding="utf-8") for path in paths if not path.startswith(_LEFT_OUT)}
    pages["../README.md"] = (_DOCS.parent / "README.md").read_text(encoding="utf-8")
    return {path: text for path, text in pages.items() if NOTE not in text}


def page() -> str:
    """Returns the list: a line for each fact, `kind: fact`."""
    found = {fact for text in written_pages().values() for fact in facts_in(text)}
    return "".join(f"{kind}: {fact}\n" for kind, fact in sorted(found))


def facts_in(text: str) -> Iterator[tuple[str, str]]:
    """Yields (kind, fact) for the facts of a page, each as often as it stands there."""
    keys, (commands, options) = set(known_keys(Settings)), _commands()
    names = {key.rpartition(".")[2] for key in keys}
    for span in _CODE.findall(text):
        for word in re.split(r"[\s=]+", span):
            if word in keys or word in names:
                yield "key", word
    yield from (("option", option) for option in options if re.search(rf"(?<![\w-]){option}(?![\w-])", text))
    for command in commands:
        if re.search(rf"\binflight {command}\b", text):
            yield "command", f"inflight {command}"
    for kind, pattern in _PATTERNS.items():
        yield from ((kind, fact) for fact in pattern.findall(text))
    prose = _FENCE.sub("", text)
    for piece in _END.split(_LINK.sub(r"\1", prose)):
        if _RULE.search(piece) and " " in piece.strip(" |#*-"):
            yield "rule", " ".join(piece.strip(" |#*-").split())


def _commands() -> tuple[list[str], set[str]]:
    """Returns the commands and their options."""
    commands: list[str] = []
    options: set[str] = set()

    def visit(command: Any, name: str) -> None:
        options.update(option for parameter in command.params for option in parameter.opts if option.startswith("--"))
        inner = getattr(command, "commands", {})
        for word, child in inner.items():
            visit(child, f"{name} {word}".strip())
        if not inner:
            commands.append(name)

    visit(get_command(app), "")
    return commands, options
