"""What the sections of the configuration are made of: their base class, kinds of values, and where defaults come from."""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, SecretStr

from streaming.config.units import (
    DAY,
    Schedule,
    format_duration,
    format_schedule,
    format_size,
    parse_duration_ms,
    parse_schedule_ms,
    parse_size_bytes,
)

KeyPath: TypeAlias = tuple[str | int, ...]
Option: TypeAlias = str | bool | int | float

# Python holds milliseconds and bytes; files and messages show them as people write them.
DurationMs = Annotated[int, BeforeValidator(parse_duration_ms), PlainSerializer(format_duration, when_used="json")]
SizeBytes = Annotated[int, BeforeValidator(parse_size_bytes), PlainSerializer(format_size, when_used="json")]
Secret = Annotated[SecretStr, PlainSerializer(lambda _: "", when_used="json")]
_SECRET: Final = re.compile(
    r"(?i)passw(or)?d(?!_file)|secret|jaas|(access|account)[.]?key|keystore[.]key|token\b|credentials(?![.]provider)"
)


def names_a_secret(text: str) -> bool:
    """Whether a key, an option of Kafka or Spark, or a table in JSON has the name of a secret. Rather once too often."""
    return bool(_SECRET.search(text))


def _without_secrets(options: dict[str, Option]) -> dict[str, Option]:
    return {name: "" if names_a_secret(name) else value for name, value in options.items()}


Options = Annotated[dict[str, Option], PlainSerializer(_without_secrets, when_used="json")]

_RETRY: Final = Schedule(ge=100, le=DAY)
RetryIntervalMs = Annotated[
    int | tuple[int, ...],
    BeforeValidator(parse_schedule_ms),
    AfterValidator(_RETRY.check),
    _RETRY,
    PlainSerializer(format_schedule, when_used="json"),
]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Key:
    """A key whose default is that of the class that the section configures."""

    meaning: str
    limits: dict[str, Any]


_OF_THE_CLASS: Final = object()


def key(meaning: str, default: object = _OF_THE_CLASS, **limits: Any) -> Any:
    """One key. limits: as pydantic's Field has them. Without default: that of `Section`'s `configures`, by the same name."""
    return _Key(meaning, limits) if default is _OF_THE_CLASS else Field(default, description=meaning, **limits)


class Section(BaseModel):
    """Base of every section: frozen, and an unknown key is an error.

    configures: an instance of the plain dataclass that the section configures. It is the only place of its defaults.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def __init_subclass__(cls, *, configures: object = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, value in list(vars(cls).items()):
            if isinstance(value, _Key):
                setattr(cls, name, key(value.meaning, getattr(configures, name), **value.limits))

    def plain(self, kind: Callable[..., _T], **others: Any) -> _T:
        """The dataclass `kind` with the values of the keys that are called as its fields; others: its other fields."""
        same = {field.name for field in fields(kind)} & type(self).model_fields.keys() - others.keys()  # type: ignore[arg-type]
        return kind(**{name: getattr(self, name) for name in same}, **others)
