"""Compares two configurations, and merges the keys that a running process can change."""

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel

from state.setting import SETTING, Process, Setting
from streaming.config.section import setting_of
from streaming.config.settings import Settings

_T = TypeVar("_T")


def changed_keys(old: Any, new: Any, path: str = "") -> list[str]:
    """Returns the keys that differ, like `session.max_inflight`, between two results of `model_dump`; a list is one value."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [path]
    names = sorted({*old, *new})
    return [key for name in names for key in changed_keys(old.get(name), new.get(name), f"{path}.{name}" if path else name)]


def changed_settings(old: Settings, new: Settings) -> list[str]:
    """Returns the keys that differ. Secrets are named and not shown."""
    return changed_keys(old.model_dump(), new.model_dump())


def with_reloaded(in_force: _T, new: _T, process: Process) -> _T:
    """Returns `in_force` with the keys of `new` that the process can change while it runs. Both are settings, or one table."""
    changes: dict[str, Any] = {}
    for name, setting in _settings(type(in_force)):
        before, after = getattr(in_force, name), getattr(new, name)
        if process in setting.reloaded_by:
            changes[name] = after
        elif is_dataclass(before):
            changes[name] = with_reloaded(before, after, process)
    if isinstance(in_force, BaseModel):
        return in_force.model_copy(update=changes)
    return replace(in_force, **changes)  # type: ignore[type-var]


def _settings(kind: Any) -> list[tuple[str, Setting]]:
    if issubclass(kind, BaseModel):
        return [(name, setting_of(field)) for name, field in kind.model_fields.items()]
    return [(field.name, field.metadata[SETTING]) for field in fields(kind) if SETTING in field.metadata]
