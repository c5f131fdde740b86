"""Decides which web pages may connect by WebSocket. A browser lets any page try, and sends its site in `Origin`."""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

ANY: Final = "*"


def is_origin_allowed(origins: Sequence[str], *, host: str, allowed: Iterable[str], is_tls: bool) -> bool:
    """Returns True if every origin of a WebSocket request may connect.

    The gateway's own address is allowed: it serves no pages, and some clients that are no browsers send it. A host name is
    allowed only with TLS, because without it anybody can give this address a name.

    Args:
        origins: The `Origin` headers of the request. Most devices that are no browsers send none.
        host: The `Host` header of the request.
        allowed: Origins that the configuration allows.
        is_tls: True if the listener uses TLS.
    """
    return all(
        origin in allowed or ANY in allowed or (_without_scheme(origin) == host.lower() and (is_tls or _is_address(host)))
        for origin in origins
    )


def _without_scheme(origin: str) -> str:
    return origin.partition("://")[2].lower()


def _is_address(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False
