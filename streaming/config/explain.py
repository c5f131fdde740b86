"""Explains the configuration to people: what is wrong with a value, which key was probably meant, and the commented TOML file."""

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from streaming.config.removed import REMOVED
from streaming.config.secrets import is_harmless_option, names_a_secret
from streaming.config.section import FORMAT, KeyPath, Section, as_section, sections_of, setting_of

_LINE_WIDTH: Final = 120
_INDEX: Final = re.compile(r"\[[0-9]+\]")
_NO_SECRET: Final = re.compile(r"true|false|[0-9.]{1,12}[a-zA-Z]{0,2}")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class Contradictions(ValueError):
    """Carries keys that are fine one by one but not together: (key path, what is wrong) for each."""

    def __init__(self, found: Sequence[tuple[KeyPath, str]]) -> None:
        super().__init__("; ".join(message for _, message in found))
        self.found = tuple(found)


def explain(model: type[BaseModel], error: ValidationError) -> Iterator[tuple[KeyPath, str]]:
    """Yields (key path, sentence) for everything that pydantic found."""
    explained: set[KeyPath] = set()
    for found in error.errors(include_url=False):
        cause = found.get("ctx", {}).get("error")
        if isinstance(cause, Contradictions):
            yield from cause.found
            continue
        path, field = _blamed(model, found["loc"])
        if path not in explained:  # a union complains once for each of its members
            explained.add(path)
            yield path, _sentence(model, path, field, found["type"], found["msg"], found["input"])


def resolve_key(model: type[BaseModel], dotted: str) -> tuple[str, ...] | None:
    """Returns the path of a dotted key, or None if there is no such key.

    What follows a table of free names is one name, dots included; it may be in quotes, as in TOML.
    """
    parts, keys = tuple(dotted.split(".")), _keys(model, lists=False)
    if parts in keys:
        return parts
    tables = (parts[:length] for length in range(1, len(parts)) if _is_free_table(keys.get(parts[:length])))
    return next(((*table, _unquoted(".".join(parts[len(table) :]))) for table in tables), None)


def _unquoted(name: str) -> str:
    is_quoted = len(name) > 2 and name[0] == name[-1] and name[0] in "\"'"
    return name[1:-1] if is_quoted else name


def is_text(model: type[BaseModel], path: tuple[str, ...]) -> bool:
    """Returns True if the key is a text, so that brackets mean nothing in it. path: as `resolve_key` finds it."""
    field = _keys(model, lists=False).get(path)
    return field is not None and (field.annotation is str or setting_of(field).none is not None)


def may_be_a_secret(model: type[BaseModel], path: tuple[str, ...], text: str) -> bool:
    """Returns True if `text`, given for a key that exists, is a secret or has one in it. path: as `resolve_key` finds it."""
    field = _keys(model, lists=False).get(path)
    if field is None:
        return bool(text) and not _is_harmless(path[-1], text)  # in a table of free names
    if setting_of(field).secret:
        return bool(text)
    if _is_free_table(field) and not _are_harmless(text):
        return True
    return (_is_free_table(field) or bool(_sections(field))) and names_a_secret(text)


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


def known_keys(model: type[BaseModel]) -> list[str]:
    """Returns every dotted key, for suggestions; of a list of tables only its name."""
    return [".".join(path) for path, field in _keys(model, lists=False).items() if not _is_table(field)]


def unknown_key(model: type[BaseModel], dotted: str) -> str:
    """Returns the sentence for a key that does not exist: what replaces it, or which key was probably meant."""
    name = _INDEX.sub("", dotted).replace("profiles.", "session.")
    for removed, instead in REMOVED.items():
        if f"{name}.".startswith(f"{removed}.") or f"session.{name}" == removed:
            return f"removed: {instead}"
    by_last_part = {known.rpartition(".")[2]: known for known in known_keys(model)}
    close = difflib.get_close_matches(dotted, known_keys(model), n=1, cutoff=0.6)
    close += [by_last_part[name] for name in difflib.get_close_matches(dotted.rpartition(".")[2], by_last_part, n=1, cutoff=0.6)]
    return f"there is no such key; did you mean {close[0]}?" if close else "there is no such key; conf/inflight.toml has them all"


def allowed(field: FieldInfo) -> str:
    """Returns the values that a key may have: `100ms … 1d`, `reconnect, timer, wait`; empty if the meaning says it."""
    annotation = field.annotation
    if annotation is bool:
        return "true, false"
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return ", ".join(annotation)
    setting = setting_of(field)
    limits = setting.within or ()
    return " … ".join("0" if limit == 0 else FORMAT[setting.unit](limit) for limit in limits)


def render_toml(settings: BaseModel, *, comments: bool = True) -> str:
    """Returns a TOML file that reads back as the same settings, with empty secrets."""
    lines: list[str] = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if not isinstance(value, tuple):
            lines += _table(name, as_section(value), comments=comments)
            continue
        for element in value:
            written = as_section(element).model_dump(mode="json", exclude_unset=True, exclude_none=True)
            lines += ["", f"[[{name}]]", *(f"{key} = {_toml(item)}" for key, item in written.items())]
    return "\n".join(lines).strip() + "\n"


def join_key(path: KeyPath) -> str:
    """Returns `profiles[0].max_inflight` for ("profiles", 0, "max_inflight")."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


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
            yield from _comment(setting_of(field).meaning + (f" [{limits}]" if limits else ""))
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
        keys = {name if _BARE_KEY.fullmatch(name) else json.dumps(name): item for name, item in value.items()}
        items = ", ".join(f"{key} = {_toml(item)}" for key, item in keys.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _sentence(model: type[BaseModel], path: KeyPath, field: FieldInfo | None, kind: str, text: str, value: object) -> str:
    if kind == "extra_forbidden":
        return unknown_key(model, join_key(path))
    if kind == "missing":
        return f"is missing: {setting_of(field).meaning if field else text}"
    what = text.removeprefix("Value error, ")
    meaning, limits, secret = "", "", False
    if field is not None:
        setting, limits = setting_of(field), allowed(field)
        meaning, secret = f" ({setting.meaning})" if setting.meaning else "", setting.secret
    shown = "" if secret or isinstance(value, dict | list) else f"is {value!r}: "
    return f"{shown}{what[:1].lower()}{what[1:]}" + (f"; allowed: {limits}" if limits else "") + meaning


def _blamed(model: type[BaseModel], loc: KeyPath) -> tuple[KeyPath, FieldInfo | None]:
    """Returns the part of a pydantic location that names a key (not a member of a union), and its field if there is one."""
    keys = _keys(model, lists=True)
    names: tuple[str, ...] = ()
    field: FieldInfo | None = None
    for index, part in enumerate(loc):
        if isinstance(part, int):
            continue
        inside, field = field, keys.get((*names, part))
        names = (*names, part)
        if field is None:
            if inside is None or _sections(inside):
                return loc[: index + 1], None  # an unknown key
            # In a table whose keys users choose, the next part of the location is such a key; pydantic added the parts after it.
            return loc[: index + _is_free_table(inside)], inside
    return loc, field


def _keys(model: type[BaseModel], *, lists: bool, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], FieldInfo]:
    """Returns every key and every table by its path. lists: with the keys in lists of tables, without an index."""
    found: dict[tuple[str, ...], FieldInfo] = {}
    for name, field in model.model_fields.items():
        found[(*above, name)] = field
        for nested in _sections(field):
            if lists or _is_table(field):
                found |= _keys(nested, lists=lists, above=(*above, name))
    return found


def _sections(field: FieldInfo) -> list[type[Section]]:
    return sections_of(field.annotation)


def _is_table(field: FieldInfo) -> bool:
    return bool(_sections(field)) and get_origin(field.annotation) is not tuple


def _is_free_table(field: FieldInfo | None) -> bool:
    return field is not None and get_origin(field.annotation) is dict
