"""Compares two configurations, and merges the keys that a running process can change."""

from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

from state.setting import Process
from streaming.config.keys import keys_of
from streaming.config.settings import Settings

_T = TypeVar("_T")


def changed_keys(old: Any, new: Any, path: str = "") -> list[str]:
    """Returns the keys that differ, like `session.max_inflight`, between two documents; a list is one value."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [path]
    names = sorted({*old, *new})
    return [key for name in names for key in changed_keys(old.get(name), new.get(name), f"{path}.{name}" if path else name)]


def changed_settings(old: Settings, new: Settings) -> list[str]:
    """Returns the keys that differ, like `session.max_inflight`; a list is one value. Secrets are named and not shown."""
    return sorted(_changed(old, new, ""))


def _changed(old: Any, new: Any, path: str) -> Iterator[str]:
    for key in keys_of(type(old)):
        before, after = getattr(old, key.field), getattr(new, key.field)
        if key.is_table:
            yield from _changed(before, after, f"{path}{key.name}.")
        elif before != after or (key.setting.later and getattr(old, key.setting.later) != getattr(new, key.setting.later)):
            yield f"{path}{key.name}"


def with_reloaded(in_force: _T, new: _T, process: Process) -> _T:
    """Returns `in_force` with the keys of `new` that the process can change while it runs. Both are settings, or one table."""
    changes: dict[str, Any] = {}
    for key in keys_of(type(in_force)):
        before, after = getattr(in_force, key.field), getattr(new, key.field)
        if process in key.setting.reloaded_by:
            changes[key.field] = after
        elif is_dataclass(before):
            changes[key.field] = with_reloaded(before, after, process)
    if isinstance(in_force, Settings):
        return in_force.with_tables(**changes)
    return replace(in_force, **changes)  # type: ignore[type-var]
