"""Finds refused logins in the gateways' logs of a data directory."""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_EVENT: Final = "login_refused"
_TAIL_BYTES: Final = 4 << 20
_MAX_TEXT: Final = 200
"""The log has the beginnings of longer texts."""
_FIELD: Final = re.compile(r"""(\w+)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S*)""")
"""A field of a log line. A value with blanks, quotes or control characters is a Python literal."""
_COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedLogin:
    """A refused CONNECT.

    Attributes:
        time: ISO 8601 in UTC, to milliseconds.
    """

    time: str
    reason: str
    detail: str
    address: str


def last_refused_login(logs: Iterable[Path], client_id: str) -> RefusedLogin | None:
    """Returns the newest refusal that the ends of the logs have of a client; a flood of refusals is not logged whole."""
    found = [refused for log in logs for line in _lines(log) if (refused := _refused(line, client_id)) is not None]
    return max(reversed(found), key=lambda refused: refused.time, default=None)


def _lines(log: Path) -> Iterator[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            for line in file:
                if _EVENT.encode() in line:
                    yield line.decode(errors="replace").rstrip("\n")
    except OSError:
        return


def _refused(line: str, client_id: str) -> RefusedLogin | None:
    try:
        fields = json.loads(line) if line.startswith("{") else _fields(_COLOURS.sub("", line))
    except (ValueError, SyntaxError):
        return None  # the gateway is just writing it, or it was cut
    if fields.get("event") != _EVENT or fields.get("client_id") != client_id[:_MAX_TEXT]:
        return None
    time = f"{fields['timestamp'][:23]}Z"
    return RefusedLogin(time=time, reason=fields["reason"], detail=fields.get("detail", ""), address=fields.get("address", ""))


def _fields(line: str) -> dict[str, str]:
    """Returns the fields of a line for people: `TIME [LEVEL] EVENT NAME=VALUE …`."""
    timestamp, _, rest = line.partition(" ")
    event, _, values = rest.partition("] ")[2].partition(" ")
    found = {name: ast.literal_eval(value) if value[:1] in ("'", '"') else value for name, value in _FIELD.findall(values)}
    return {"timestamp": timestamp, "event": event, **found}
