"""Whom an address stands for when what it uses is counted."""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

_NETWORK_OF_ONE_HOST: Final = 64
"""IPv6 gives this much to one host, which can take any address in it."""
_REMEMBERED: Final = 4_096
"""Addresses that need not be looked at again."""


def host_of(address: str) -> str:
    """The same for all addresses that one host can take."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], _NETWORK_OF_ONE_HOST), strict=False))
    except ValueError:
        return address


class Hosts:
    """unlimited: networks whose addresses stand for many devices, such as load balancers that do not tell addresses."""

    def __init__(self, unlimited: Iterable[str]) -> None:
        self._unlimited = tuple(ipaddress.ip_network(network, strict=False) for network in unlimited)
        self._remembered = lru_cache(_REMEMBERED)(self._limited)

    def limited(self, address: str) -> str | None:
        """The host to count for; None = there is no limit for it, or the address is not known."""
        return self._remembered(address)

    def _limited(self, address: str) -> str | None:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return None
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        if any(parsed in network for network in self._unlimited):
            return None
        return host_of(str(parsed))
