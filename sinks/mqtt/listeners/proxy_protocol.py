"""Reads the header by which a load balancer passes on the device's address: PROXY protocol v1 (text) or v2 (binary).

https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt, 2.1 and 2.2. TLVs behind the addresses of v2 are skipped.
"""

import ipaddress
import struct
from collections.abc import Awaitable, Callable
from typing import Final

_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V1: Final = b"PROXY "
_V1_END: Final = b"\r\n"
_V1_MAX_BYTES: Final = 107
_V1_FAMILIES: Final = {"TCP4": ipaddress.IPv4Address, "TCP6": ipaddress.IPv6Address}
_V1_UNKNOWN: Final = "UNKNOWN"
_START: Final = struct.Struct("!BBH")
_LOCAL, _PROXY = 0x20, 0x21
_ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}
"""Length of the source address, which comes first, for TCP over IPv4 and IPv6."""
_PORTS_BYTES: Final = 4
_MAX_BODY_BYTES: Final = 4_096


class ProxyHeaderInvalid(ValueError):
    """The bytes are no such header."""


async def read_header(read: Callable[[int], Awaitable[bytes]]) -> str | None:
    """Reads exactly one header: what follows it is TLS or MQTT.

    Args:
        read: Returns exactly as many bytes as it is asked for.

    Returns:
        The address of the device; None = the proxy connects for itself, for example as a health check, or does not say.

    Raises:
        ProxyHeaderInvalid: The bytes are no such header.
    """
    first = await read(len(_SIGNATURE))  # the shortest line of version 1 is longer
    if first == _SIGNATURE:
        return await _read_v2(read)
    if first.startswith(_V1):
        return await _read_v1(first, read)
    raise ProxyHeaderInvalid("no PROXY protocol header: let the load balancer send it, or remove `proxies`")


async def _read_v1(line: bytes, read: Callable[[int], Awaitable[bytes]]) -> str | None:
    while not line.endswith(_V1_END):
        if len(line) >= _V1_MAX_BYTES:
            raise ProxyHeaderInvalid(f"a PROXY protocol v1 header of more than {_V1_MAX_BYTES} bytes")
        line += await read(1)
    family, *words = line[len(_V1) : -len(_V1_END)].decode("latin-1").split(" ")
    if family == _V1_UNKNOWN:
        return None
    address = _V1_FAMILIES.get(family)
    if address is None or len(words) != len(("source", "destination", "source port", "destination port")):
        raise ProxyHeaderInvalid("a PROXY protocol v1 header without TCP4 or TCP6, two addresses and two ports")
    try:
        source, _ = address(words[0]), address(words[1])
    except ValueError as error:
        raise ProxyHeaderInvalid(f"a PROXY protocol v1 header with an unusable address: {error}") from error
    return str(source)


async def _read_v2(read: Callable[[int], Awaitable[bytes]]) -> str | None:
    command, family, body_bytes = _START.unpack(await read(_START.size))
    if command not in (_LOCAL, _PROXY):
        raise ProxyHeaderInvalid(f"a PROXY protocol header with the unknown version or command {command:#04x}")
    if body_bytes > _MAX_BODY_BYTES:
        raise ProxyHeaderInvalid(f"a PROXY protocol header of {body_bytes} bytes")
    body = await read(body_bytes)
    size = _ADDRESS_BYTES.get(family)
    if command == _LOCAL or size is None:
        return None
    if len(body) < 2 * size + _PORTS_BYTES:
        raise ProxyHeaderInvalid("the addresses of the PROXY protocol header are cut off")
    return str(ipaddress.ip_address(body[:size]))
