"""Asks a running engine about its sessions, which takes a second instead of a Spark of one's own."""

import http.client
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from streaming.engine.answers.address import AnswersAddress

LOOPBACK: Final = "127.0.0.1"
_TIMEOUT_S: Final = 60.0
"""A million sessions take longer to read than a few; without an engine the port refuses at once."""


def ask_engine(data_dir: Path, checkpoint: str, question: str, **parameters: object) -> Any | None:
    """Returns the decoded JSON of an answer; None if no engine on this data directory and checkpoint gives one.

    Args:
        question: A path of streaming/engine/answers/server.py.
    """
    address = AnswersAddress.read(data_dir)
    if address is None or address.checkpoint != checkpoint:
        return None
    connection = http.client.HTTPConnection(LOOPBACK, address.port, timeout=_TIMEOUT_S)
    try:
        headers = {"Authorization": f"Bearer {address.token}"}
        connection.request("GET", f"/{question}?{urlencode(parameters)}", headers=headers)
        answer = connection.getresponse()
        return msgspec.json.decode(answer.read()) if answer.status == http.client.OK else None
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()
