"""Reads the header by which a load balancer passes on the device's address: version 2 (binary) of the PROXY protocol.

https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt, 2.2. What may follow the addresses (TLVs) is skipped.
"""

import ipaddress
import struct
from typing import Final, NamedTuple

_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V1: Final = b"PROXY "
_START: Final = struct.Struct("!12sBBH")
START_BYTES: Final = _START.size
_LOCAL, _PROXY = 0x20, 0x21
_ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}
"""Length of the source address, which comes first, for TCP over IPv4 and IPv6."""
_PORTS_BYTES: Final = 4
_MAX_BODY_BYTES: Final = 4_096


class ProxyHeaderInvalid(ValueError):
    """The bytes are no such header, or have another version."""


class HeaderStart(NamedTuple):
    """is_proxied: False = the proxy connects for itself, for example as a health check. body_bytes: the bytes that follow."""

    is_proxied: bool
    family: int
    body_bytes: int


def read_start(start: bytes) -> HeaderStart:
    """Reads the first START_BYTES bytes. Raises ProxyHeaderInvalid."""
    signature, command, family, body_bytes = _START.unpack(start)
    if signature != _SIGNATURE or command not in (_LOCAL, _PROXY):
        if start.startswith(_V1):
            raise ProxyHeaderInvalid("a PROXY protocol v1 header: let the load balancer send v2 (HAProxy: send-proxy-v2)")
        raise ProxyHeaderInvalid("no PROXY protocol v2 header: let the load balancer send it, or remove `proxies`")
    if body_bytes > _MAX_BODY_BYTES:
        raise ProxyHeaderInvalid(f"a header of {body_bytes} bytes")
    return HeaderStart(command == _PROXY, family, body_bytes)


def read_address(start: HeaderStart, body: bytes) -> str | None:
    """Returns the address of the device; None = the header names none. Raises ProxyHeaderInvalid."""
    size = _ADDRESS_BYTES.get(start.family)
    if not start.is_proxied or size is None:
        return None
    if len(body) < 2 * size + _PORTS_BYTES:
        raise ProxyHeaderInvalid("the addresses are cut off")
    return str(ipaddress.ip_address(body[:size]))
