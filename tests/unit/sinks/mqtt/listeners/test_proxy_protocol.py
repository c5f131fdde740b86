import asyncio
import io
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.mqtt.listeners.proxy_protocol import ProxyHeaderInvalid, read_header

SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")


FOLLOWS = b"\x10\x0e\x00\x04MQTT"


def header(command: int = 0x21, family: int = 0x11, body: bytes = b"") -> bytes:
    return SIGNATURE + struct.pack("!BBH", command, family, len(body)) + body


def address(data: bytes) -> str | None:
    """Reads the header, and checks that what follows it is left to others."""
    stream = io.BytesIO(data + FOLLOWS)

    async def read(size: int) -> bytes:
        return stream.read(size)

    found = asyncio.run(read_header(read))
    assert stream.read() == FOLLOWS
    return found


def ports() -> bytes:
    return struct.pack("!HH", 40_000, 1_883)


def test_the_address_of_the_device_is_read() -> None:
    v4 = socket.inet_aton("192.0.2.7") + socket.inet_aton("10.0.0.1") + ports()
    assert address(header(body=v4)) == "192.0.2.7"
    assert address(header(body=v4 + b"\x04\x00\x01x")) == "192.0.2.7"  # what follows is not ours
    v6 = socket.inet_pton(socket.AF_INET6, "2001:db8::7") + bytes(16) + ports()
    assert address(header(family=0x21, body=v6)) == "2001:db8::7"


@pytest.mark.parametrize("command", [0x20, 0x21])
def test_a_header_may_name_none(command: int) -> None:
    assert address(header(command=command, family=0x00)) is None
    assert address(header(command=0x20, body=bytes(12))) is None


@pytest.mark.parametrize(
    ("line", "source"),
    [
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 40000 1883\r\n", "192.0.2.7"),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 40000 1883\r\n", "2001:db8::7"),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None),
    ],
)
def test_a_line_of_version_1_is_read(line: bytes, source: str | None) -> None:
    assert address(line) == source


@pytest.mark.parametrize(
    "data",
    [
        b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x0a\x00\x02c1",
        SIGNATURE + b"\x11\x11\x00\x0c",
        SIGNATURE + b"\x22\x11\x00\x0c",
        SIGNATURE + b"\x21\x11\xff\xff",
        header(body=bytes(11)),
        b"PROXY TCP4 192.0.2.700 10.0.0.1 40000 1883\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 40000\r\n",
        b"PROXY TCP6 192.0.2.7 10.0.0.1 40000 1883\r\n",
        b"PROXY UDP4 192.0.2.7 10.0.0.1 40000 1883\r\n",
        b"PROXY TCP4 " + b"1" * 200 + b"\r\n",
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ProxyHeaderInvalid):
        address(data)


@given(st.integers(0, 255), st.integers(0, 255), st.binary(max_size=80))
def test_any_header_has_an_address_or_none_or_is_refused(command: int, family: int, body: bytes) -> None:
    try:
        found = address(header(command, family, body))
    except ProxyHeaderInvalid:
        return
    assert found is None or ":" in found or found.count(".") == 3
