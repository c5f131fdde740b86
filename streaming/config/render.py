"""The settings as a TOML file, with or without what each key means."""

import json
import re
from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel

from streaming.config.explain import allowed
from streaming.config.section import Section

_LINE_WIDTH: Final = 120
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def render_toml(settings: BaseModel, *, comments: bool = True) -> str:
    """A TOML file that reads back as the same settings; secrets as empty strings."""
    lines: list[str] = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        for section in value if isinstance(value, tuple) else ():
            written = section.model_dump(mode="json", exclude_unset=True, exclude_none=True)
            lines += ["", f"[[{name}]]", *(f"{key} = {_toml(item)}" for key, item in written.items())]
        if isinstance(value, Section):
            lines += _table(name, value, comments=comments)
    return "\n".join(lines).strip() + "\n"


def _table(name: str, section: Section, *, comments: bool) -> Iterator[str]:
    yield ""
    if comments:
        yield from _comment(type(section).__doc__ or "")
    yield f"[{name}]"
    written = section.model_dump(mode="json")
    tables = {key: value for key in written if isinstance(value := getattr(section, key), Section)}
    for key, field in type(section).model_fields.items():
        if key in tables:
            continue
        if comments:
            limits = allowed(field)
            yield from _comment(f"{field.description}" + (f" [{limits}]" if limits else ""))
        yield f"{key} = {_toml(written[key])}"
    for key, table in tables.items():
        yield from _table(f"{name}.{key}", table, comments=comments)


def _comment(text: str) -> Iterator[str]:
    line = "#"
    for word in text.split():
        if len(line) + 1 + len(word) > _LINE_WIDTH:
            yield line
            line = "#"
        line += f" {word}"
    yield line


def _toml(value: object) -> str:
    if isinstance(value, dict):
        items = ", ".join(f"{_toml_key(name)} = {_toml(item)}" for name, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name)
