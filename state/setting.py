"""Describes the keys of the configuration, each on the field of the plain class that uses it.

    max_inflight: int = Setting("QoS 1 and 2 messages unacknowledged at once", (0, 65_535)).default(32)

The name, the type and the default of the field are those of the key. streaming/config/section.py derives everything else from it:
what is read and refused, the text of conf/inflight.toml, the error messages. A field without a `Setting` is no key.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Literal, TypeAlias, TypeVar

from state.model import NEVER_EXPIRES_S

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
NEVER_MS: Final = NEVER_EXPIRES_S * SECOND
"""The longest duration, MQTT's own "never"; written `never`."""

SETTING: Final = "setting"
"""The key of a `Setting` in the metadata of a field."""

Unit: TypeAlias = Literal["", "ms", "s", "bytes"]
_T = TypeVar("_T")
Process: TypeAlias = Literal["engine", "gateway"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One key, or one table if the type of the field is a settings class, or a tuple of such.

    Args:
        meaning: a fragment of a sentence that people read; a table has the first paragraph of its class instead.
        within: the least and the largest value, in the unit of the field.
        key: what people write; empty = the name of the field.
        unit: in which the field holds a duration or a size, which people write as `30s` or `1MiB`; empty = as the end of the
            field's name says (`_ms`, `_s`, `_bytes`), else none.
        min_length, max_length: of a text in characters, of a list in elements.
        pattern: regular expression that a text has to match.
        check: raises ValueError, with what is allowed, for a value or for one element of a list that may not be.
        read, show: convert what people write to the field's value, and back; `read` raises ValueError with what is allowed.
        none: the text that stands for None.
        is_required: it has to be written, although the field has a default.
        later: the field that has the other elements if people may write a list; this field has the first one.
        secret: the value is never shown, and refused as a flag.
        reloaded_by: the processes that take a changed value while they run; for all others it needs a restart.
    """

    meaning: str = ""
    within: tuple[float, float] | None = None
    _: KW_ONLY
    key: str = ""
    unit: Unit = ""
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    check: Callable[[str], object] | Callable[[int], object] | None = None
    read: Callable[[object], object] | None = None
    show: Callable[[object], str | int] = str
    none: str | None = None
    is_required: bool = False
    later: str = ""
    secret: bool = False
    reloaded_by: tuple[Process, ...] = ()

    @property
    def metadata(self) -> dict[str, "Setting"]:
        """Returns the metadata for `dataclasses.field`, for a field without a default."""
        return {SETTING: self}

    def default(self, value: _T) -> _T:
        """Returns a field with this default."""
        return field(default=value, metadata=self.metadata, repr=not self.secret)

    def default_factory(self, make: Callable[[], _T], *, is_shown: bool) -> _T:
        """Returns a field whose default is made anew for each instance.

        Args:
            is_shown: True if the `repr` of an instance shows the field.
        """
        return field(default_factory=make, metadata=self.metadata, repr=is_shown)
