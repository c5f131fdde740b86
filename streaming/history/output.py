"""Shows payloads to people, as text where they are text."""

import base64
import codecs
from collections.abc import Mapping
from typing import Any, Final

_HEX_BYTES: Final = 24


def beginning_of(payload: bytes, most_bytes: int) -> str:
    """Returns the first bytes as text, or in hexadecimal where they are no text."""
    raw, more = payload[:most_bytes], "…" if len(payload) > most_bytes else ""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(raw)  # a character that is cut at the end is left out
    except UnicodeDecodeError:
        text = "\0"
    return f"{text if text.isprintable() else f'0x{raw.hex()}'}{more}"


def payload_of(document: Mapping[str, Any], *, whole: bool) -> str:
    """Returns the payload as text, or its bytes in hexadecimal.

    Args:
        whole: False = at most 24 bytes in hexadecimal.
    """
    text = document.get("payload_text")
    if isinstance(text, str) and text.isprintable():
        return text
    raw = base64.b64decode(document.get("payload") or "")
    is_cut = not whole and len(raw) > _HEX_BYTES
    return f"0x{(raw[:_HEX_BYTES] if is_cut else raw).hex()}{'…' if is_cut else ''} ({len(raw)} bytes)"
