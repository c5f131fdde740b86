"""Maps addresses to hosts, by which connections and failed logins are counted."""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

_NETWORK_OF_ONE_HOST: Final = 64
"""IPv6: one host gets a network of this prefix length and can use any address in it."""
_REMEMBERED: Final = 4_096
"""Addresses in the cache."""


def host_of(address: str) -> str:
    """Returns the same text for all addresses that one host can use."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], _NETWORK_OF_ONE_HOST), strict=False))
    except ValueError:
        return address


class Hosts:
    """Finds the host that an address counts for.

    Args:
        unlimited: Networks without a limit. An address there stands for many devices, as that of a load balancer does.
    """

    def __init__(self, unlimited: Iterable[str]) -> None:
        self._unlimited = tuple(ipaddress.ip_network(network, strict=False) for network in unlimited)
        self._remembered = lru_cache(_REMEMBERED)(self._limited)

    def limited(self, address: str) -> str | None:
        """Returns the host to count for; None = it has no limit, or the address is not known."""
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
