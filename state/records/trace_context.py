"""Finds the trace that a message belongs to: `traceparent` of W3C Trace Context, level 1.

In Kafka it is the header `traceparent`. On the wire of MQTT 5 it is a user property of the same name, so that a device can send
it back. A value of another form is no trace, and is passed on like any other header or property.
"""

import re
from collections.abc import Iterable
from typing import Final

TRACEPARENT: Final = "traceparent"

_FORM: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?", re.ASCII)
"""Version, trace id, parent id, flags. Later versions than 00 may have more behind the flags."""


def is_traceparent(text: str) -> bool:
    """Returns True for a trace id and a parent id that are not all zeros."""
    return _FORM.fullmatch(text) is not None


def traceparent_of(user_properties: Iterable[tuple[str, str]]) -> str | None:
    """Returns the trace in the user properties of a message; None = there is none. The last one counts, as for headers."""
    found = None
    for name, text in user_properties:
        if name == TRACEPARENT and is_traceparent(text):
            found = text
    return found


def with_traceparent(user_properties: list[tuple[str, str]], header: bytes) -> list[tuple[str, str]]:
    """Returns the user properties of a message whose Kafka record has the header. A property that is a trace counts more."""
    text = header.decode(errors="replace")
    if not is_traceparent(text) or traceparent_of(user_properties) is not None:
        return user_properties
    return [*user_properties, (TRACEPARENT, text)]
