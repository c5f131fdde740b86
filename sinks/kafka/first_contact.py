"""Finds out quickly whether somebody listens at Kafka's addresses. Kafka's clients try for half a minute before they say it."""

import queue
import socket
import threading
import time
from typing import Final

CONTACT_S: Final = 2.0
_KAFKA_PORT: Final = 9092


def first_contact(bootstrap_servers: str, *, within_s: float = CONTACT_S) -> str | None:
    """Returns None if one of the servers accepts a connection, else why each of them does not, for people.

    Args:
        bootstrap_servers: `HOST:PORT`, with commas between several.
        within_s: Limits the time for all of them together.
    """
    servers = [server.strip() for server in bootstrap_servers.split(",") if server.strip()]
    answers: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
    for server in servers:  # a thread each, because a look-up of a name has no time limit
        threading.Thread(target=lambda one: answers.put((one, _dialled(one, within_s))), args=(server,), daemon=True).start()
    deadline_s = time.monotonic() + within_s
    silent = dict.fromkeys(servers, f"no answer within {within_s:g} s")
    for _ in servers:
        try:
            server, why = answers.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            break
        if why is None:
            return None
        silent[server] = why
    return "; ".join(f"{server}: {why}" for server, why in silent.items())


def _dialled(server: str, within_s: float) -> str | None:
    host, colon, port = server.rpartition(":")
    if not colon or not port.isdecimal():
        host, port = server, str(_KAFKA_PORT)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=within_s).close()
    except TimeoutError:
        return f"no answer within {within_s:g} s"
    except (OSError, OverflowError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
