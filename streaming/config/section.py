"""Derives the tables of the configuration from the settings classes: what state/setting.py says of each key, as pydantic models.

A section has one attribute for each key, by the key's name. Its values are those of the plain class, in its units; only nested
tables are sections, too. `section.plain()` is an instance of the class, `Section.of(instance)` the way back.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cache
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Final, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    create_model,
)
from pydantic import Field as Constraints
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from state.setting import NEVER_MS, SETTING, Setting, Unit
from streaming.config.secrets import is_harmless_option
from streaming.config.units import (
    check_schedule,
    format_duration,
    format_schedule,
    format_seconds,
    format_size,
    parse_duration_ms,
    parse_schedule_ms,
    parse_seconds,
    parse_size_bytes,
)

KeyPath: TypeAlias = tuple[str | int, ...]
_T = TypeVar("_T")
_PARSE: Final[Mapping[Unit, Callable[[object], int]]] = {"ms": parse_duration_ms, "s": parse_seconds, "bytes": parse_size_bytes}
FORMAT: Final[Mapping[Unit, Callable[[Any], str]]] = {"ms": format_duration, "s": format_seconds, "bytes": format_size, "": str}
"""Writes a value of a unit as people do."""


class Section(BaseModel):
    """Base of every derived table: frozen, and an unknown key is an error.

    settings_class: the plain class. field_of: the field of it that a key describes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    settings_class: ClassVar[Any]
    field_of: ClassVar[Mapping[str, "Field[Any]"]]

    def plain(self) -> Any:
        """Returns an instance of the settings class."""
        defaults = {field.name: _default(field) for field in self.field_of.values()}
        return self.settings_class(**dict(self._fields(self.field_of, defaults)))

    def over(self, below: _T) -> _T:
        """Returns other settings with the keys that are written here. below: of the settings class, or of a base of it."""
        known = {field.name: getattr(below, field.name) for field in fields(below)}  # type: ignore[arg-type]
        written = (key for key in self.model_fields_set if self.field_of[key].name in known)
        return replace(below, **dict(self._fields(written, known)))  # type: ignore[type-var]

    def _fields(self, keys: Iterable[str], below: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yields the fields of some keys with their values. below: where a nested table is written in part, its other keys."""
        for key in keys:
            name, value, later = self.field_of[key].name, getattr(self, key), setting_of(type(self).model_fields[key]).later
            if later:
                value, *rest = value if isinstance(value, tuple) else (value,)
                yield later, tuple(rest)
            yield name, value.over(below[name]) if isinstance(value, Section) else plain(value)

    @classmethod
    def of(cls, settings: object) -> "Section":
        """Returns settings as a section in which those keys count as written that differ from their defaults."""
        values: dict[str, Any] = {}
        for key, field in cls.model_fields.items():
            value, later = getattr(settings, cls.field_of[key].name), setting_of(field).later
            values[key] = (value, *rest) if later and (rest := getattr(settings, later)) else as_section(value)
        written = {key for key, field in cls.model_fields.items() if field.is_required() or values[key] != field.default}
        return cls.model_construct(_fields_set=written, **values)


@dataclass(frozen=True, slots=True)
class Table(Setting):
    """Marks a field of a pydantic model whose type is a settings class, or a tuple of one. It is read as that class's section."""

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            lambda value, read: value if as_section(value) is not value else plain(read(value)),
            handler.generate_schema(_table(kind)),
            serialization=core_schema.plain_serializer_function_ser_schema(_dump, info_arg=True),
        )


def setting_of(field: FieldInfo) -> Setting:
    """Returns what is said of the key."""
    return next((item for item in field.metadata if isinstance(item, Setting)), _NOTHING)


def sections_of(annotation: Any) -> list[type[Section]]:
    """Returns the section, or the section of the elements, if the type is a table or a list of tables."""
    kinds = [_table(kind) or kind for kind in (annotation, *get_args(annotation))]
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]


@cache
def section_of(settings_class: Any) -> type[Section]:
    """Returns the section of a settings class. The keys of a subclass come before those that it inherits."""
    hints = get_type_hints(settings_class)
    by_name = {field.name: field for field in fields(settings_class) if SETTING in field.metadata}
    own = [name for name in inspect.get_annotations(settings_class) if name in by_name]
    keys: dict[str, Any] = {}
    field_of: dict[str, Field[Any]] = {}
    for name in dict.fromkeys((*own, *by_name)):
        setting, default = by_name[name].metadata[SETTING], as_section(_default(by_name[name]))
        unit = setting.unit or next((unit for unit in _PARSE if name.endswith(f"_{unit}")), "")
        setting, key = replace(setting, unit=unit), setting.key or name
        is_required = setting.is_required or default is MISSING
        keys[key] = Annotated[_annotation(hints[name], setting), setting], ... if is_required else default
        field_of[key] = by_name[name]
    document = (inspect.getdoc(settings_class) or "").partition("\n\n")[0]
    section = create_model(settings_class.__name__, __base__=Section, __doc__=document, **keys)
    section.settings_class, section.field_of = settings_class, field_of
    return section


def as_section(value: Any) -> Any:
    """Returns settings as the section of their class, also in a tuple; anything else stays as it is."""
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return tuple(map(as_section, value))
    if is_dataclass(value):
        kind: Any = type(value)
        return section_of(kind).of(value)
    return value


def plain(value: Any) -> Any:
    """Returns sections as instances of their classes, also in a tuple; anything else stays as it is."""
    if isinstance(value, Section):
        return value.plain()
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


_NOTHING: Final = Setting()


def _default(field: "Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _table(kind: Any) -> Any:
    """Returns the section of a settings class, a tuple of sections for a tuple of such; None = neither."""
    if get_origin(kind) is tuple:
        element = _table(get_args(kind)[0])
        return None if element is None else GenericAlias(tuple, (element, ...))
    return section_of(kind) if is_dataclass(kind) and isinstance(kind, type) else None


def _annotation(hint: Any, setting: Setting) -> Any:
    """Returns the type of a key: that of the field, with what is allowed, and how people write it."""
    if table := _table(hint):
        return table
    if type(None) in get_args(hint):
        (hint,) = (kind for kind in get_args(hint) if kind is not type(None))
        annotation = _annotation(hint, setting) | None
        if setting.none is None:
            return annotation
        show = _shown(lambda value: setting.none if value is None or setting.secret else value)
        return Annotated[annotation, BeforeValidator(lambda value: None if value == setting.none else value), show]
    if setting.read is not None:
        return Annotated[hint, PlainValidator(setting.read), _shown(setting.show)]
    least, most = setting.within or (None, None)
    limits: Any = Constraints(
        ge=least, le=most, min_length=setting.min_length, max_length=setting.max_length, pattern=setting.pattern
    )
    if setting.later:
        check = AfterValidator(lambda waits: check_schedule(waits, setting.within or (0, NEVER_MS)))
        return Annotated[int | tuple[int, ...], BeforeValidator(parse_schedule_ms), check, _shown(format_schedule)]
    if setting.unit:
        return Annotated[hint, BeforeValidator(_PARSE[setting.unit]), limits, _shown(FORMAT[setting.unit])]
    if setting.secret:
        return Annotated[hint, limits, _shown(lambda _: "")]
    origin = get_origin(hint)
    if origin is Mapping:
        show = _shown(lambda options: {name: value if is_harmless_option(name) else "" for name, value in options.items()})
        return Annotated[GenericAlias(dict, get_args(hint)), show]
    if origin in (tuple, frozenset):
        element: Any = Annotated[get_args(hint)[0], _checked(setting)]
        if origin is frozenset:
            return Annotated[GenericAlias(frozenset, (element,)), _shown(sorted)]
        return Annotated[GenericAlias(tuple, (element, ...)), limits]
    return Annotated[hint, limits, _checked(setting)]


def _shown(show: Callable[[Any], object]) -> PlainSerializer:
    return PlainSerializer(show, when_used="json")


def _checked(setting: Setting) -> AfterValidator:
    check: Callable[[Any], object] | None = setting.check

    def checked(value: Any) -> Any:
        if check is not None:
            check(value)
        return value

    return AfterValidator(checked)


def _dump(value: Any, info: Any) -> Any:
    section = as_section(value)
    return section.model_dump(mode=info.mode) if isinstance(section, Section) else [_dump(item, info) for item in value]
