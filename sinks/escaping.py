"""Escapes text from outside for those who look at it: on a terminal, on a page, in a log.

Devices and backends choose client ids, topics, payloads and reason strings. A control character in them would be carried out by a
terminal, and a bidirectional override would show another text than the one that is there.
"""

from typing import Final

_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def escaped(text: str, *, keep: str = "") -> str:
    r"""Returns the text with `\n`, `\x1b` or `\u202e` for each character that is not printable.

    Args:
        keep: Characters that stay, for example a newline in a text of several lines.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else _SHORT.get(one) or _numbered(one) for one in text)


def escaped_json(document: str) -> str:
    r"""Returns the same JSON with `\uXXXX` for the characters that `escaped` would escape. Programs read the exact text."""
    if document.isprintable():
        return document
    return "".join(one if one.isprintable() or one == "\n" else _json_escape(one) for one in document)


def _numbered(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))
