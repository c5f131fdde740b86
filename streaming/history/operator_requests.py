"""Records in the ledger what an operator has asked for, and who that was.

A row is written and confirmed before the request, so no request is without one. Its `transition` is `operator_request`; a replay
has its own, `dead_letter_replayed`. The user is the one of the command's process, as the machine names it: Kafka's own log of
authorizations has the user who logged in there.
"""

import os
import pwd
import socket
from typing import Final

from state.records.ledger import LedgerRow, encode_ledger_rows

OPERATOR_REQUEST: Final = "operator_request"
_MOST: Final = 200
"""Characters of a name."""


def this_user() -> str:
    """Returns `anna on machine-1`, or `root (sudo by anna) on machine-1`."""
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # as in a container
        name = f"uid {uid}"
    if by := os.environ.get("SUDO_USER", ""):
        name = f"{name} (sudo by {by[:_MOST]})"
    return f"{name} on {socket.gethostname()}"


def request_row(client_id: str, detail: str, now_ms: int) -> bytes:
    """Returns the value of a record of the ledger, whose key is the client id.

    Args:
        client_id: Empty for a request that is for no single client.
        detail: What was asked for and by whom, for people.
    """
    row = LedgerRow(client_id=client_id, batch_ms=now_ms, transition=OPERATOR_REQUEST, time_ms=now_ms, detail=detail)
    return encode_ledger_rows([row])
