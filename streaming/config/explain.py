"""Explains the configuration to people: what a key may hold, which key was probably meant, and the commented TOML file."""

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, TypeAlias, get_args, get_origin

import annotated_types
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from streaming.config.sections import Duration, ProfileSection, Section, Size
from streaming.config.units import Schedule, format_duration, format_size

KeyPath: TypeAlias = tuple[str | int, ...]
_LINE_WIDTH: Final = 120


class Contradictions(ValueError):
    """Keys that are fine one by one but not together: (key path, what is wrong) for each."""

    def __init__(self, found: Sequence[tuple[KeyPath, str]]) -> None:
        super().__init__("; ".join(message for _, message in found))
        self.found = tuple(found)


def explain(model: type[BaseModel], error: ValidationError) -> Iterator[tuple[KeyPath, str]]:
    """(key path, sentence) for everything that pydantic found."""
    explained: set[KeyPath] = set()
    for found in error.errors(include_url=False):
        cause = found.get("ctx", {}).get("error")
        if isinstance(cause, Contradictions):
            yield from cause.found
            continue
        path, field = _walk(model, found["loc"])
        if path in explained:
            continue  # a union complains once for each of its members
        explained.add(path)
        yield path, _sentence(model, path, field, found["type"], found["msg"], found["input"])


def resolve_key(model: type[BaseModel], key: str) -> tuple[str, ...] | None:
    """The path of a dotted key, or None if there is no such key. What follows a table of free names is one name, dots and all."""
    parts = key.split(".")
    for index, part in enumerate(parts):
        field = model.model_fields.get(part)
        if field is None:
            return None
        nested = _nested_model(field)
        if nested is None:
            rest = parts[index + 1 :]
            if rest and get_origin(field.annotation) is not dict:
                return None
            return (*parts[: index + 1], ".".join(rest)) if rest else tuple(parts)
        model = nested
    return tuple(parts)


def known_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key, for suggestions."""
    for name, field in model.model_fields.items():
        nested = _nested_model(field)
        if nested is None:
            yield prefix + (field.alias or name)
        else:
            yield from known_keys(nested, f"{prefix}{name}.")


def unknown_key(model: type[BaseModel], key: str) -> str:
    """The sentence for a key that does not exist, with the one that was probably meant."""
    candidates = list(known_keys(model))
    by_last_part = {candidate.rpartition(".")[2]: candidate for candidate in candidates}
    close = difflib.get_close_matches(key, candidates, n=1, cutoff=0.6)
    if not close:
        last = difflib.get_close_matches(key.rpartition(".")[2], by_last_part, n=1, cutoff=0.6)
        close = [by_last_part[name] for name in last]
    return f"there is no such key; did you mean {close[0]}?" if close else "there is no such key; conf/inflight.toml has them all"


def allowed(field: FieldInfo) -> str:
    """The values a field takes: `100ms … 1d`, `0 … 65535`, `reconnect, timer, wait`; empty when the description says it all."""
    annotation = field.annotation
    if annotation is bool:
        return "true, false"
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return ", ".join(annotation)
    low = high = None
    show: Callable[[int], str] = str
    for item in field.metadata:
        if isinstance(item, annotated_types.Ge):
            low = item.ge
        elif isinstance(item, annotated_types.Le):
            high = item.le
        elif isinstance(item, Duration):
            show = format_duration
        elif isinstance(item, Size):
            show = format_size
        elif isinstance(item, Schedule):
            low, high, show = item.ge, item.le, format_duration
    return f"{_shown_limit(show, low)} … {_shown_limit(show, high)}" if low is not None and high is not None else ""


def render_toml(settings: BaseModel, *, comments: bool = True) -> str:
    """The settings as a TOML file that reads back as the same settings; secrets as empty strings."""
    lines: list[str] = []
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, Section):
            _render_table(name, value, lines, comments=comments)
        elif isinstance(value, tuple):
            for profile in value:
                _render_profile(field.alias or name, profile, lines)
    return "\n".join(lines).strip() + "\n"


def _render_table(name: str, section: Section, lines: list[str], *, comments: bool) -> None:
    lines.append("")
    if comments:
        lines.extend(_comment(" ".join((type(section).__doc__ or "").split())))
    lines.append(f"[{name}]")
    tables: list[tuple[str, Any]] = []
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if isinstance(value, Section):
            tables.append((key, value))
            continue
        if comments:
            limits = allowed(field)
            lines.extend(_comment(f"{field.description}" + (f" [{limits}]" if limits else "")))
        lines.append(f"{key} = {_toml_value(field, value)}")
    for key, value in tables:
        _render_table(f"{name}.{key}", value, lines, comments=comments)


def _render_profile(name: str, profile: Section, lines: list[str]) -> None:
    lines += ["", f"[[{name}]]"]
    written = profile.model_dump(exclude_unset=True, exclude_none=True, exclude={"backoff"})
    lines += [f"{key} = {_toml_value(type(profile).model_fields[key], value)}" for key, value in written.items()]
    if isinstance(profile, ProfileSection) and "backoff" in profile.model_fields_set:
        fields = type(profile.backoff).model_fields
        inner = [
            f"{key} = {_toml_value(fields[key], value)}" for key, value in profile.backoff.model_dump(exclude_unset=True).items()
        ]
        lines.append(f"backoff = {{ {', '.join(inner)} }}")


def _comment(text: str) -> Iterator[str]:
    line = "#"
    for word in text.split():
        if len(line) + 1 + len(word) > _LINE_WIDTH:
            yield line
            line = "#"
        line += f" {word}"
    yield line


def _toml_value(field: FieldInfo, value: object) -> str:
    kinds = {type(item) for item in field.metadata}
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and kinds & {Duration, Schedule}:
        return f'"{format_duration(value)}"'
    if isinstance(value, int) and Size in kinds:
        return f'"{format_size(value)}"'
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, SecretStr):
        return '""'
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml_value(field, item) for item in value)}]"
    if isinstance(value, dict):
        items = ", ".join(f"{json.dumps(key)} = {_toml_value(FieldInfo(), item)}" for key, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    return json.dumps(str(value), ensure_ascii=False)


def _shown_limit(show: Any, limit: Any) -> str:
    text: str = show(limit)
    return text if limit or show is str else "0"


def _sentence(model: type[BaseModel], path: KeyPath, field: FieldInfo | None, kind: str, text: str, value: object) -> str:
    dotted = join_key(path)
    if kind == "extra_forbidden":
        return unknown_key(model, dotted)
    if kind == "missing":
        return f"is missing: {field.description if field else text}"
    what = text.removeprefix("Value error, ")
    secret = field is not None and "SecretStr" in str(field.annotation)
    shown = "" if secret or isinstance(value, dict | list) else f"is {value!r}: "
    limits = allowed(field) if field else ""
    meaning = f" ({field.description})" if field and field.description else ""
    return f"{shown}{what[:1].lower()}{what[1:]}" + (f"; allowed: {limits}" if limits else "") + meaning


def join_key(path: KeyPath) -> str:
    """`profiles[0].max_inflight` of ("profiles", 0, "max_inflight")."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _walk(model: type[BaseModel], loc: KeyPath) -> tuple[KeyPath, FieldInfo | None]:
    """The part of a pydantic location that names a key of ours (not a member of a union), and its field if there is one."""
    current: type[BaseModel] | None = model
    field: FieldInfo | None = None
    for index, part in enumerate(loc):
        if isinstance(part, int):
            continue
        if current is None:
            # Inside a table of free names: one more part is the name, the rest is pydantic's.
            is_table = field is not None and get_origin(field.annotation) is dict
            return (loc[: index + 1] if is_table else loc[:index]), field
        fields = {(info.alias or name): info for name, info in current.model_fields.items()}
        field = fields.get(part)
        if field is None:
            return loc[: index + 1], None
        current = _nested_model(field) or _item_model(field)
    return loc, field


def _nested_model(field: FieldInfo) -> type[BaseModel] | None:
    return field.annotation if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel) else None


def _item_model(field: FieldInfo) -> type[BaseModel] | None:
    arguments = [item for item in get_args(field.annotation) if isinstance(item, type) and issubclass(item, BaseModel)]
    return arguments[0] if arguments else None
