"""Makes the reference of the configuration from the declared settings (state/setting.py)."""

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from docs.generate.markdown import NOTE, code, linked, sentence, table
from state.settings import SessionSettings
from streaming.config.configuration import Configuration
from streaming.config.explain import document_of, shown
from streaming.config.keys import Key, keys_of
from streaming.settings import Profile

_HEAD: Final = f"""# Configuration

{NOTE}

Every key, as the code declares it. `inflight config --comments` prints the same as a file with the values in force.

- Give your own file with `--config FILE`; it needs only the keys that differ.
- Each key can be set by a variable (`INFLIGHT__SESSION__MAX_INFLIGHT=64`) and by a flag (`--set session.max_inflight=64`).
- Keys of `[session]` need no table in a flag: `--set max_inflight=64`. Flags win over variables, variables over the file.
- Durations: `500ms`, `30s`, `2h`, `1h30m`, `never`; a bare number is milliseconds. Sizes: `256KiB`, `1MiB`; a bare number is bytes.
- A wrong key or value stops the start. The error names the place, what is allowed, and the key that was probably meant.

"Reloaded by" names the processes that take a changed value from their file while they run. A key without it needs a restart. [configure.md](../operate/configure.md) has the rules of a reload.
"""
_SESSION_FIELDS: Final = frozenset(field.name for field in fields(SessionSettings))


def page() -> str:
    """Returns the page."""
    parts = [_HEAD]
    for key in keys_of(Configuration):
        parts += _tables(key.name, key, key.setting.reloaded_by)
    return "\n".join(parts)


def _tables(name: str, of: Key, reloaded_by: tuple[str, ...]) -> Iterator[str]:
    """Yields a section for a table, or for the tables of a list, and one for each table inside of it."""
    settings_class = of.kind
    nested: list[tuple[str, Key, tuple[str, ...]]] = []
    rows = []
    document = document_of(settings_class)
    inherited = _SESSION_FIELDS if issubclass(settings_class, Profile) else frozenset()
    if inherited:
        document += " It may have every key of [session], which holds for its clients then"
    for key in keys_of(settings_class):
        if key.field in inherited:
            continue
        processes = key.setting.reloaded_by or reloaded_by
        if key.is_table or key.is_list:
            nested.append((f"{name}.{key.name}", key, processes))
            continue
        reloaded = f" Reloaded by {' and '.join(processes)}." if processes else ""
        rows.append((code(key.name), code(_default(key)), _allowed(key), linked(sentence(key.setting.meaning)), reloaded))
    title = f"[[{name}]]" if of.is_list else f"[{name}]"
    yield f"\n{'###' if '.' in name else '##'} {title}\n\n{linked(sentence(document))}\n"
    if rows:
        in_common = rows[0][-1] if len({reloaded for *_, reloaded in rows}) == 1 else ""
        if in_common:
            yield f"Each key:{in_common.lower()}\n"
        cells = [(*shown, meaning if in_common else meaning + reloaded) for *shown, meaning, reloaded in rows]
        yield table(("key", "default", "allowed", "meaning"), cells)
    for inner in nested:
        yield from _tables(*inner)


def _default(key: Key) -> str:
    if key.is_required:
        return "required"
    written = shown(key, {key.field: key.default})
    return "none" if written is None else json.dumps(written, ensure_ascii=False)


def _allowed(key: Key) -> str:
    if key.allowed:
        return key.allowed
    if key.setting.unit:
        return {"ms": "duration", "s": "duration", "bytes": "size"}[key.setting.unit]
    if key.origin is not None:
        return "list"
    if key.is_free_table:
        return "table"
    return {str: "text", int: "number", float: "number"}.get(key.kind, "")
