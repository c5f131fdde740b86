"""Asks a running engine about its sessions, which takes a second instead of a Spark of one's own."""

import http.client
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from state.errors import InflightError
from streaming.engine.answers.address import AnswersAddress

LOOPBACK: Final = "127.0.0.1"


class EngineBusy(InflightError):
    """The engine has not answered in time. To start another Spark would make it slower still."""


def ask_engine(data_dir: Path, checkpoint: str, question: str, timeout_s: float, **parameters: object) -> Any | None:
    """Returns the decoded JSON of an answer; None if no engine on this data directory and checkpoint gives one.

    Args:
        question: A path of streaming/engine/answers/server.py.

    Raises:
        EngineBusy: There is one, and it does not answer in time.
    """
    address = AnswersAddress.read(data_dir)
    if address is None or address.checkpoint != checkpoint:
        return None
    connection = http.client.HTTPConnection(LOOPBACK, address.port, timeout=timeout_s)
    try:
        headers = {"Authorization": f"Bearer {address.token}"}
        connection.request("GET", f"/{question}?{urlencode(parameters)}", headers=headers)
        answer = connection.getresponse()
        return msgspec.json.decode(answer.read()) if answer.status == http.client.OK else None
    except TimeoutError:
        raise EngineBusy(
            f"the engine on {data_dir} has not answered within {timeout_s:.0f} s: it has too much to do, or very many sessions. "
            "Ask again; `inflight status --quick` does not ask it"
        ) from None
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()
