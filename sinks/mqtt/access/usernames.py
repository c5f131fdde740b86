"""The rule for user names, in the password file, tokens and certificates alike."""

from typing import Final

from sinks.mqtt_topics import has_control_character

_MAX_BYTES: Final = 256
_NOT_ALLOWED: Final = frozenset("/+#")

WHAT_IS_ALLOWED: Final = f"1 to {_MAX_BYTES} bytes without '/', '+', '#', control characters and blanks at the ends"


def is_username(name: str) -> bool:
    """Returns True if a text may be a user name.

    `/` separates a user name from the rest of a client id, and `+` and `#` are wildcards. With them in a name, a user could have
    the client ids and topics of another.
    """
    return (
        name == name.strip()
        and 0 < len(name.encode("utf-8", "surrogatepass")) <= _MAX_BYTES
        and _NOT_ALLOWED.isdisjoint(name)
        and not has_control_character(name)
    )
