"""Makes the reference of errors and of log events from the source."""

from collections import defaultdict
from typing import Final

from docs.generate.markdown import NOTE, code, linked, table
from docs.generate.source import LogEvent, log_events, raised_errors

_AREAS: Final = (
    ("inflight/cli", "Commands"),
    ("inflight/console", "Console"),
    ("inflight/local", "`inflight up`"),
    ("inflight", "Backends"),
    ("streaming/history", "Questions about messages"),
    ("streaming/archive", "Archive"),
    ("streaming/config", "Configuration"),
    ("streaming/reload", "Gateway"),
    ("streaming", "Engine"),
    ("sinks/mqtt", "Gateway"),
    ("sinks/fast_path", "Gateway"),
    ("sinks/host", "Gateway"),
    ("sinks/routing", "Matcher"),
    ("sinks/bridge", "Bridge"),
    ("sinks", "Clients of Kafka"),
)
"""The first fitting beginning of a module's path decides."""
_NOT_FOR_PEOPLE: Final = frozenset({"ProtocolViolation", "SessionMisuse", "UnreadableRecord"})
_LEAST_WORDS: Final = 4
_HEAD: Final = f"""# Errors

{NOTE}

The texts of errors that a command, a process or the Python API ends with, as they are in the code. `…` stands for a value. Errors for devices are
[reason codes](codes.md). Errors of keys of the configuration name the file, the line, what is allowed, and the key that was probably meant.
"""
_EVENTS_HEAD: Final = f"""# Log events

{NOTE}

Warnings and errors of the processes' logs, by name. "What to do" is the field `action` of the event; where nothing stands, the event's other fields
say it. Events that only inform are left out.
"""


def page() -> str:
    """Returns the page of errors."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for error in raised_errors("InflightError", _NOT_FOR_PEOPLE):
        text = " ".join(error.text.split()).strip("… ")
        if len(text.split()) >= _LEAST_WORDS:
            found[area(error.where)][" ".join(error.text.split())] = error.kind
    parts = [_HEAD]
    for name in dict.fromkeys(name for _, name in _AREAS):
        if name in found:
            parts.append(f"\n## {name}\n")
            parts.append(table(("error", "text"), sorted((code(kind), shown(text)) for text, kind in found[name].items())))
    return "\n".join(parts) + "\n"


def events_page() -> str:
    """Returns the page of log events."""
    found: dict[str, dict[str, list[LogEvent]]] = defaultdict(lambda: defaultdict(list))
    for event in log_events():
        if " " not in event.name:
            found[area(event.where)][event.name].append(event)
    parts = [_EVENTS_HEAD]
    for name in dict.fromkeys(name for _, name in _AREAS):
        if name in found:
            rows = [
                (code(event), "error" if any(one.level == "error" for one in those) else "warning", shown(actions(those)))
                for event, those in sorted(found[name].items())
            ]
            parts.append(f"\n## {name}\n")
            parts.append(table(("event", "level", "what to do"), rows))
    return "\n".join(parts) + "\n"


def actions(events: list[LogEvent]) -> str:
    return "; or: ".join(dict.fromkeys(event.action for event in events if event.action))


def area(where: str) -> str:
    return next(name for beginning, name in _AREAS if where.startswith(f"{beginning}/") or where == f"{beginning}.py")


def shown(text: str) -> str:
    """Returns a text of the code so that Markdown changes nothing in it."""
    return linked(text.replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")) if "`" not in text else linked(text)
