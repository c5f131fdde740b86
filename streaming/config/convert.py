"""Converts what people write into the fields of the settings classes, table by table, and finds everything that is wrong."""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

import msgspec

from state.setting import NEVER_MS, Setting
from streaming.config.explain import join_key, unknown_key
from streaming.config.keys import Key, KeyPath, Partial, built, keys_of
from streaming.config.units import check_schedule, parse_duration_ms, parse_schedule_ms, parse_seconds, parse_size_bytes

Problems: TypeAlias = list[tuple[KeyPath, str]]

_PARSE: Final = {"ms": parse_duration_ms, "s": parse_seconds, "bytes": parse_size_bytes}


class Converter:
    """Reads tables. root: the settings class of the whole configuration, for the names of unknown keys."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self.problems: Problems = []

    def table(self, settings_class: Any, written: object, path: KeyPath) -> dict[str, Any]:
        """Returns the fields that a table sets; what is wrong becomes a problem."""
        if not isinstance(written, Mapping):
            shown = "" if isinstance(written, list) else f"is {written!r}: "
            self.problems.append((path, f"{shown}write a table"))
            return {}
        values: dict[str, Any] = {}
        keys = {key.name: key for key in keys_of(settings_class)}
        for name, key in keys.items():
            here = (*path, name)
            if name in written:
                values |= self._fields(key, written[name], here)
            elif key.is_required:
                self.problems.append((here, f"is missing: {key.setting.meaning}"))
        for name in written:
            if name not in keys:
                here = (*path, name)
                self.problems.append((here, unknown_key(self._root, join_key(here))))
        return values

    def tables(self, written: Mapping[str, object]) -> dict[str, Any]:
        """Returns the tables of the configuration that are written, as settings; see `problems`."""
        found = self.table(self._root, written, ())
        nested = {key.field: key for key in keys_of(self._root) if isinstance(found.get(key.field), dict)}
        return found | {name: self._built(key.kind, found[name], (key.name,)) for name, key in nested.items()}

    def _built(self, settings_class: Any, values: Mapping[str, Any], path: KeyPath) -> Any:
        try:
            return built(settings_class, values)
        except ValueError as error:  # keys of the table that its class does not allow together
            self.problems.append((path, _lower(str(error))))

    def _fields(self, key: Key, value: object, path: KeyPath) -> dict[str, Any]:
        if key.is_table:
            if isinstance(value, key.kind):
                return {key.field: value}
            before = len(self.problems)
            nested = self.table(key.kind, value, path)
            return {key.field: nested} if len(self.problems) == before else {}
        if key.is_list:
            return {key.field: tuple(self._elements(key, value, path))}
        before = len(self.problems)
        try:
            found = self._value(key, value, path)
        except ValueError as error:
            self._refuse(key, path, error, value)
        if len(self.problems) > before:
            return {}
        if key.setting.later:
            first, *later = found if isinstance(found, tuple) else (found,)
            return {key.field: first, key.setting.later: tuple(later)}
        return {key.field: found}

    def _value(self, key: Key, value: object, path: KeyPath) -> Any:
        """Returns the value of a field. Raises ValueError; what is wrong with an element becomes a problem."""
        setting = key.setting
        if key.is_optional and (value is None or (setting.none is not None and value == setting.none)):
            return None
        if setting.read is not None:
            return setting.read(value)
        if setting.later:
            return check_schedule(parse_schedule_ms(value), setting.within or (0, NEVER_MS))
        if setting.unit:
            return _limited(_PARSE[setting.unit](value), setting)
        if key.is_free_table:
            return self._options(key, value, path)
        if key.origin is None:
            return _checked(_limited(_scalar(key.kind, value), setting), setting)
        if not isinstance(value, list | tuple | set | frozenset):
            raise ValueError(f"Input should be a valid {key.origin.__name__}")
        found = []
        for index, element in enumerate(value):
            try:
                found.append(_checked(_scalar(get_args(key.kind)[0], element), setting))
            except ValueError as error:
                self._refuse(key, (*path, index), error, element)
        return frozenset(found) if key.origin is frozenset else _limited(tuple(found), setting)

    def _options(self, key: Key, value: object, path: KeyPath) -> dict[str, Any]:
        """Returns a table of free names, whose values are text, numbers, or true or false."""
        if not isinstance(value, Mapping):
            raise ValueError("Input should be a valid dictionary")
        for name, option in value.items():
            if not isinstance(option, str | bool | int | float):
                self._refuse(key, (*path, name), ValueError("Input should be a valid string"), option)
        return dict(value)

    def _refuse(self, key: Key, path: KeyPath, error: ValueError, value: object) -> None:
        self.problems.append((path, _sentence(key, str(error), value)))

    def _elements(self, key: Key, value: object, path: KeyPath) -> Iterator[Any]:
        if not isinstance(value, list | tuple):
            self._refuse(key, path, ValueError("Input should be a valid tuple"), value)
            return
        for index, element in enumerate(value):
            if isinstance(element, Partial | key.kind):
                yield element
            elif key.setting.element is None:
                before, here = len(self.problems), (*path, index)
                values = self.table(key.kind, element, here)
                if len(self.problems) == before:
                    yield self._built(key.kind, values, here)
            else:
                yield Partial(key.kind, self.table(key.kind, element, (*path, index)))


def _sentence(key: Key, text: str, value: object) -> str:
    setting, limits = key.setting, key.allowed
    shown = "" if setting.secret or isinstance(value, dict | list) else f"is {value!r}: "
    meaning = f" ({setting.meaning})" if setting.meaning else ""
    return f"{shown}{_lower(text)}" + (f"; allowed: {limits}" if limits else "") + meaning


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _checked(value: Any, setting: Setting) -> Any:
    if setting.check is not None:
        setting.check(value)
    return value


def _limited(value: Any, setting: Setting) -> Any:
    """Returns a value that is within the limits. Raises ValueError."""
    if isinstance(value, int | float):
        least, most = setting.within or (None, None)
        if least is not None and not value >= least:
            raise ValueError(f"Input should be greater than or equal to {least}")
        if most is not None and not value <= most:
            raise ValueError(f"Input should be less than or equal to {most}")
    elif isinstance(value, str | tuple):
        what, unit = ("String", "character") if isinstance(value, str) else ("Tuple", "item")
        rest = "" if isinstance(value, str) else f" after validation, not {len(value)}"
        for limit, sign, words in (setting.min_length, 1, "at least"), (setting.max_length, -1, "at most"):
            if limit is not None and sign * len(value) < sign * limit:
                raise ValueError(f"{what} should have {words} {limit} {unit}{'' if limit == 1 else 's'}{rest}")
        if setting.pattern is not None and isinstance(value, str) and not re.search(setting.pattern, value):
            raise ValueError(f"String should match pattern '{setting.pattern}'")
    return value


def _scalar(kind: Any, value: object) -> Any:
    """Returns a text, a number, true or false, a path, or one of some words. Raises ValueError."""
    if isinstance(kind, type) and isinstance(value, kind) and not isinstance(value, bool):
        return value
    try:
        found = msgspec.convert(value, str if kind is Path else kind, strict=False)
    except msgspec.ValidationError as error:
        words = kind if isinstance(kind, type) and issubclass(kind, StrEnum) else get_args(kind)
        raise ValueError(f"Input should be one of {', '.join(words)}" if any(words) else str(error)) from None
    return Path(found) if kind is Path else found
