"""Lists the keys of the configuration: what state/setting.py says on the fields of the settings classes.

A settings class is a table, and each of its fields with a `Setting` is a key, or a further table if its type is a settings class.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

from state.setting import SETTING, Setting, Unit
from streaming.config.units import format_duration, format_seconds, format_size

KeyPath: TypeAlias = tuple[str | int, ...]

FORMAT: Final[Mapping[Unit, Callable[[Any], str]]] = {"ms": format_duration, "s": format_seconds, "bytes": format_size, "": str}
"""Writes a value of a unit as people do."""


class Partial:
    """A table of a list that stays as it was written: its other keys hold elsewhere, and it is asked which keys it has.

    Args:
        settings_class: What the table is about.
        values: Of the written fields; a nested table is a dict of its own.
    """

    def __init__(self, settings_class: Any, values: Mapping[str, Any]) -> None:
        self.settings_class = settings_class
        self.values = values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partial) and (self.settings_class, self.values) == (other.settings_class, other.values)

    def __hash__(self) -> int:
        return hash((self.settings_class, frozenset(self.values)))

    def __repr__(self) -> str:
        return f"{self.settings_class.__name__}({', '.join(sorted(self.values))})"

    def plain(self) -> Any:
        """Returns settings with the defaults of the class for all other keys."""
        return built(self.settings_class, self.values)

    def over(self, below: Any) -> Any:
        """Returns other settings with the keys that are written here. below: of the settings class, or of a base of it."""
        known = {field.name for field in fields(below)}
        return _over(below, {name: value for name, value in self.values.items() if name in known})


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table.

    Attributes:
        name: What people write.
        field: The field of the settings class that has the value.
        setting: With the unit.
        kind: The type of a value, without None; of a list of tables the class of its elements.
        default: `MISSING` if it has to be written.
        is_optional: The value may be None.
        is_table, is_list: `kind` is a settings class: of one table, or of those of a list.
    """

    name: str
    field: str
    setting: Setting
    kind: Any
    default: Any
    is_optional: bool = False
    is_table: bool = False
    is_list: bool = False

    @property
    def is_free_table(self) -> bool:
        """Returns True for a table of free names, such as kafka.options."""
        return get_origin(self.kind) is Mapping

    @property
    def origin(self) -> Any:
        """Returns `tuple` or `frozenset` for a list of values, else None."""
        origin = get_origin(self.kind)
        return origin if origin in (tuple, frozenset) else None

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    @property
    def allowed(self) -> str:
        """Returns the values that it may have: `100ms … 1d`, `reconnect, timer, wait`; empty if the meaning says it."""
        if self.kind is bool:
            return "true, false"
        if isinstance(self.kind, type) and issubclass(self.kind, StrEnum):
            return ", ".join(self.kind)
        return " … ".join("0" if limit == 0 else FORMAT[self.setting.unit](limit) for limit in self.setting.within or ())


def keys_of(settings_class: Any) -> tuple[Key, ...]:
    """Returns the keys of a table. Those of a subclass come before those that it inherits."""
    return _cached_keys(settings_class)


@cache
def _cached_keys(settings_class: Any) -> tuple[Key, ...]:
    hints = get_type_hints(settings_class)
    by_name = {field.name: field for field in fields(settings_class) if SETTING in field.metadata}
    own = [name for name in inspect.get_annotations(settings_class) if name in by_name]
    return tuple(_key(by_name[name], hints[name]) for name in dict.fromkeys((*own, *by_name)))


def every_key(settings_class: Any, *, lists: bool, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Key]]:
    """Yields all keys and tables by their paths. lists: with the keys in lists of tables, without an index."""
    for key in keys_of(settings_class):
        yield (*above, key.name), key
        if key.is_table or (key.is_list and lists):
            yield from every_key(key.kind, lists=lists, above=(*above, key.name))


def built(settings_class: Any, values: Mapping[str, Any]) -> Any:
    """Returns settings with these fields. A nested table is a dict, and keeps the default of its field for all other keys."""
    defaults = {field.name: default_of(field) for field in fields(settings_class)}
    plain = {name: _over(defaults[name], value) if _is_nested(value, defaults[name]) else value for name, value in values.items()}
    return settings_class(**plain)


def default_of(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _over(below: Any, values: Mapping[str, Any]) -> Any:
    changes = {}
    for name, value in values.items():
        under = getattr(below, name)
        changes[name] = _over(under, value) if _is_nested(value, under) else value
    return replace(below, **changes)


def _is_nested(value: Any, below: Any) -> bool:
    return isinstance(value, dict) and is_dataclass(below)


def _key(field: "Field[Any]", hint: Any) -> Key:
    setting: Setting = field.metadata[SETTING]
    unit = setting.unit or next((unit for unit in FORMAT if unit and field.name.endswith(f"_{unit}")), "")
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    is_optional = len(kinds) < len(get_args(hint))
    kind = kinds[0] if is_optional else hint
    element = get_args(kind)[0] if get_origin(kind) is tuple else None
    setting = replace(setting, unit=unit)
    default = MISSING if setting.is_required else default_of(field)
    is_list = setting.element is not None or is_dataclass(element)
    if is_list:
        kind = setting.element or element
    is_table = not is_list and is_dataclass(kind)
    return Key(
        name=setting.key or field.name,
        field=field.name,
        setting=setting,
        kind=kind,
        default=default,
        is_optional=is_optional,
        is_table=is_table,
        is_list=is_list,
    )
