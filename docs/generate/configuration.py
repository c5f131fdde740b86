"""Makes the reference of the configuration from the declared settings (state/setting.py)."""

import inspect
import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Final, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from docs.generate.markdown import NOTE, code, linked, sentence, table
from state.setting import Setting
from state.settings import SessionSettings
from streaming.config.configuration import Configuration
from streaming.config.explain import allowed
from streaming.config.section import Section, section_of, sections_of, setting_of
from streaming.config.settings import Settings
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
    for name, field in Configuration.model_fields.items():
        (section,) = sections_of(field.annotation) or [section_of(type(getattr(Settings(), name)))]
        is_list = get_origin(field.annotation) is tuple
        parts += _tables(name, section, setting_of(field).reloaded_by, is_list=is_list)
    return "\n".join(parts)


def _tables(name: str, section: type[Section], reloaded_by: tuple[str, ...], *, is_list: bool) -> Iterator[str]:
    nested: list[tuple[str, type[Section], tuple[str, ...], bool]] = []
    rows = []
    document = (inspect.getdoc(section.settings_class) or "").partition("\n\n")[0]
    inherited = _SESSION_FIELDS if issubclass(section.settings_class, Profile) else frozenset()
    if inherited:
        document += " It may have every key of [session], which holds for its clients then"
    for key, field in section.model_fields.items():
        if section.field_of[key].name in inherited:
            continue
        setting = setting_of(field)
        processes = setting.reloaded_by or reloaded_by
        if inner := sections_of(field.annotation):
            is_inner_list = get_origin(field.annotation) is tuple
            nested.append((f"{name}.{key}", inner[0], processes, is_inner_list))
            continue
        reloaded = f" Reloaded by {' and '.join(processes)}." if processes else ""
        rows.append(
            (code(key), code(_default(section, key, field)), _allowed(field), linked(sentence(setting.meaning)), reloaded)
        )
    title = f"[[{name}]]" if is_list else f"[{name}]"
    yield f"\n{'###' if '.' in name else '##'} {title}\n\n{linked(sentence(document))}\n"
    if rows:
        in_common = rows[0][-1] if len({reloaded for *_, reloaded in rows}) == 1 else ""
        if in_common:
            yield f"Each key:{in_common.lower()}\n"
        cells = [(*shown, meaning if in_common else meaning + reloaded) for *shown, meaning, reloaded in rows]
        yield table(("key", "default", "allowed", "meaning"), cells)
    for inner_name, inner_section, processes, is_inner_list in nested:
        yield from _tables(inner_name, inner_section, processes, is_list=is_inner_list)


def _default(section: type[Section], key: str, field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    shown = json.loads(section.model_construct(**{key: field.default}).model_dump_json(include={key}))[key]
    return "none" if shown is None else json.dumps(shown, ensure_ascii=False)


def _allowed(field: FieldInfo) -> str:
    if limits := allowed(field):
        return limits
    setting: Setting = setting_of(field)
    if setting.unit:
        return {"ms": "duration", "s": "duration", "bytes": "size"}[setting.unit]
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind in (str, int, float)]
    if get_origin(field.annotation) in (tuple, frozenset):
        return "list"
    if get_origin(field.annotation) is dict:
        return "table"
    return {str: "text", int: "number", float: "number"}[kinds[0]] if kinds else ""
