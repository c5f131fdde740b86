"""Which keys of two configurations differ."""

from typing import Any


def changed_keys(old: Any, new: Any, path: str = "") -> list[str]:
    """Of values as `model_dump` gives them: the keys that differ, like `session.max_inflight`; a list is one value."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [path]
    names = sorted({*old, *new})
    return [key for name in names for key in changed_keys(old.get(name), new.get(name), f"{path}.{name}" if path else name)]
