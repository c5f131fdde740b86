"""Which web pages may connect by WebSocket. Every page can try: a browser lets it, and says in `Origin` where it comes from."""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

ANY: Final = "*"


def is_origin_allowed(origins: Sequence[str], *, host: str, allowed: Iterable[str], is_tls: bool) -> bool:
    """origins: the request's `Origin`, of which devices other than browsers may have none. host: its `Host`.

    The gateway's own address counts like none: it serves no pages, and clients that are no browsers say it. But a name that
    somebody else may have given to this address does not count, unless TLS has checked it.
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
