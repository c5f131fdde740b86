"""Explains the configuration to people: which key was probably meant, and the commented TOML file.

root: the settings class of the whole configuration.
"""

import difflib
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from streaming.config.keys import FORMAT, Key, KeyPath, Partial, every_key, keys_of
from streaming.config.removed import REMOVED
from streaming.config.secrets import is_harmless_option, names_a_secret
from streaming.config.units import format_schedule

_LINE_WIDTH: Final = 120
_INDEX: Final = re.compile(r"\[[0-9]+\]")
_NO_SECRET: Final = re.compile(r"true|false|[0-9.]{1,12}[a-zA-Z]{0,2}")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def resolve_key(root: Any, dotted: str) -> tuple[str, ...] | None:
    """Returns the path of a dotted key, or None if there is no such key.

    What follows a table of free names is one name, dots included; it may be in quotes, as in TOML.
    """
    parts, keys = tuple(dotted.split(".")), _single_keys(root)
    if parts in keys:
        return parts
    tables = (parts[:length] for length in range(1, len(parts)))
    free = (table for table in tables if table in keys and keys[table].is_free_table)
    return next(((*table, _unquoted(".".join(parts[len(table) :]))) for table in free), None)


def _unquoted(name: str) -> str:
    is_quoted = len(name) > 2 and name[0] == name[-1] and name[0] in "\"'"
    return name[1:-1] if is_quoted else name


def is_text(root: Any, path: tuple[str, ...]) -> bool:
    """Returns True if the key is a text, so that brackets mean nothing in it. path: as `resolve_key` finds it."""
    key = _single_keys(root).get(path)
    return key is not None and ((key.kind is str and not key.is_optional) or key.setting.none is not None)


def may_be_a_secret(root: Any, path: tuple[str, ...], text: str) -> bool:
    """Returns True if `text`, given for a key that exists, is a secret or has one in it. path: as `resolve_key` finds it."""
    key = _single_keys(root).get(path)
    if key is None:
        return bool(text) and not _is_harmless(path[-1], text)  # in a table of free names
    if key.setting.secret:
        return bool(text)
    if key.is_free_table and not _are_harmless(text):
        return True
    return (key.is_free_table or key.is_table or key.is_list) and names_a_secret(text)


def _is_harmless(option: str, text: str) -> bool:
    return is_harmless_option(option) or (not names_a_secret(option) and bool(_NO_SECRET.fullmatch(text)))


def _are_harmless(table: str) -> bool:
    """Returns True if no option of a table can be a secret.

    Args:
        table: A JSON object. Anything else counts as harmless, because it is refused later.
    """
    try:
        options = json.loads(table)
    except ValueError:
        return True
    return not isinstance(options, dict) or all(_is_harmless(name, str(value).lower()) for name, value in options.items())


def known_keys(root: Any) -> list[str]:
    """Returns every dotted key, for suggestions; of a list of tables only its name."""
    return [".".join(path) for path, key in _single_keys(root).items() if not key.is_table]


def unknown_key(root: Any, dotted: str) -> str:
    """Returns the sentence for a key that does not exist: what replaces it, or which key was probably meant."""
    name = _INDEX.sub("", dotted).replace("profiles.", "session.")
    for removed, instead in REMOVED.items():
        if f"{name}.".startswith(f"{removed}.") or f"session.{name}" == removed:
            return f"removed: {instead}"
    by_last_part = {known.rpartition(".")[2]: known for known in known_keys(root)}
    close = difflib.get_close_matches(dotted, known_keys(root), n=1, cutoff=0.6)
    close += [by_last_part[name] for name in difflib.get_close_matches(dotted.rpartition(".")[2], by_last_part, n=1, cutoff=0.6)]
    return f"there is no such key; did you mean {close[0]}?" if close else "there is no such key; conf/inflight.toml has them all"


def render_toml(settings: Any, *, comments: bool = True) -> str:
    """Returns a TOML file that reads back as the same settings, with empty secrets. settings: the whole configuration."""
    lines: list[str] = []
    for key in keys_of(type(settings)):
        value = getattr(settings, key.field)
        if not key.is_list:
            lines += _table(key.name, value, comments=comments)
            continue
        for element in value:
            lines += ["", f"[[{key.name}]]", *(f"{name} = {_toml(item)}" for name, item in _written(element).items())]
    return "\n".join(lines).strip() + "\n"


def join_key(path: KeyPath) -> str:
    """Returns `profiles[0].max_inflight` for ("profiles", 0, "max_inflight")."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _table(name: str, table: Any, *, comments: bool) -> Iterator[str]:
    yield ""
    keys = keys_of(type(table))
    if comments:
        yield from _comment(document_of(type(table)))
    yield f"[{name}]"
    for key in keys:
        if key.is_table:
            continue
        if comments:
            yield from _comment(key.setting.meaning + (f" [{key.allowed}]" if key.allowed else ""))
        yield f"{key.name} = {_toml(shown(key, vars_of(table)))}"
    for key in keys:
        if key.is_table:
            yield from _table(f"{name}.{key.name}", getattr(table, key.field), comments=comments)


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
        keys = {name if _BARE_KEY.fullmatch(name) else json.dumps(name): item for name, item in value.items()}
        items = ", ".join(f"{key} = {_toml(item)}" for key, item in keys.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def document_of(settings_class: Any) -> str:
    """Returns what a table is about: the first paragraph of its class."""
    return (inspect.getdoc(settings_class) or "").partition("\n\n")[0]


def vars_of(settings: Any) -> dict[str, Any]:
    """Returns the values of settings, by their fields."""
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def shown(key: Key, values: Mapping[str, Any]) -> Any:
    """Returns the value of a key as people write it; empty for a secret. values: of the table, by field."""
    setting, value = key.setting, values[key.field]
    if key.is_list:
        return [_written(element) for element in value]
    if value is None or setting.none is not None:
        return setting.none if value is None or setting.secret else value
    if setting.read is not None:
        return setting.show(value)
    if setting.later:
        return format_schedule((value, *later) if (later := values.get(setting.later, ())) else value)
    if setting.unit:
        return FORMAT[setting.unit](value)
    if setting.secret:
        return ""
    if key.is_free_table:
        return {name: option if is_harmless_option(name) else "" for name, option in value.items()}
    if key.origin is not None:
        return sorted(value) if key.origin is frozenset else list(value)
    return str(value) if isinstance(value, Path) else value


def _written(table: Any) -> dict[str, Any]:
    """Returns the keys of an element of a list that are written, or that differ from their defaults."""
    is_partial = isinstance(table, Partial)
    settings_class = table.settings_class if is_partial else type(table)
    values = table.values if is_partial else vars_of(table)
    return _shown_keys(settings_class, values, is_partial=is_partial)


def _shown_keys(settings_class: Any, values: Mapping[str, Any], *, is_partial: bool) -> dict[str, Any]:
    found = {}
    for key in keys_of(settings_class):
        if key.field not in values or values[key.field] is None:
            continue
        value = values[key.field]
        is_default = value == key.default and not (key.setting.later and values.get(key.setting.later))
        if is_partial or key.is_required or not is_default:
            is_nested = key.is_table and isinstance(value, Mapping)
            found[key.name] = _shown_keys(key.kind, value, is_partial=True) if is_nested else shown(key, values)
    return found


def _single_keys(root: Any) -> dict[tuple[str, ...], Key]:
    return dict(every_key(root, lists=False))
