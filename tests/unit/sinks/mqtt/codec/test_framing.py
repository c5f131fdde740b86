import tracemalloc

import pytest

from sinks.mqtt.codec.framing import FrameBuffer, check_first_byte, encode_length
from state.errors import ProtocolViolation
from state.model import ReasonCode
from tests.unit.sinks.mqtt.mqtt_bytes import packet

PING = b"\xc0\x00"
PUBACK = b"\x40\x02\x00\x01"


def buffer(*chunks: bytes, limit: int = 1_000) -> FrameBuffer:
    frames = FrameBuffer(limit)
    for chunk in chunks:
        frames.feed(chunk)
    return frames


def test_whole_packets_come_out_one_by_one() -> None:
    frames = buffer(PING + PUBACK)
    assert frames.next_packet() == (PING, 2)
    assert frames.next_packet() == (PUBACK, 2)
    assert frames.next_packet() is None


def test_a_packet_may_arrive_byte_by_byte() -> None:
    frames = FrameBuffer(1_000)
    big = b"\x30" + encode_length(200) + b"\x00\x01t" + bytes(197)
    for index in range(len(big) - 1):
        frames.feed(big[index : index + 1])
        assert frames.next_packet() is None
    frames.feed(big[-1:])
    assert frames.next_packet() == (big, 3)
    assert frames.size_bytes == 0


@pytest.mark.parametrize(
    ("length", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_152, "80808001"),
        (268_435_455, "ffffff7f"),
    ],
)
def test_lengths_are_encoded_as_in_the_standard(length: int, encoded: str) -> None:
    assert encode_length(length).hex() == encoded


def refused(data: bytes, limit: int = 1_000) -> ReasonCode:
    with pytest.raises(ProtocolViolation) as caught:
        buffer(data, limit=limit).next_packet()
    return caught.value.reason_code


def test_a_packet_above_the_limit_is_refused_by_its_header_alone() -> None:
    assert refused(b"\x30" + encode_length(1_000)) is ReasonCode.PACKET_TOO_LARGE
    exactly = b"\x30" + encode_length(997) + b"\x00\x01t" + bytes(994)
    assert len(exactly) == 1_000
    assert buffer(exactly).next_packet() is not None


@pytest.mark.parametrize("data", ["30ffffffff", "30ffffffff01", "308000", "30ff808000"])
def test_lengths_that_are_too_long_or_padded_are_malformed(data: str) -> None:
    """[MQTT-1.5.5-1]"""
    assert refused(bytes.fromhex(data), limit=1 << 30) is ReasonCode.MALFORMED_PACKET


@pytest.mark.parametrize(
    "first_byte", [0x10, 0x30, 0x31, 0x32, 0x34, 0x3A, 0x3C, 0x3D, 0x40, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xC0, 0xE0, 0xF0]
)
def test_first_bytes_that_a_client_may_send(first_byte: int) -> None:
    check_first_byte(first_byte)


@pytest.mark.parametrize("first_byte", [0x20, 0x90, 0xB0, 0xD0])
def test_packets_that_only_a_server_sends_are_a_protocol_error(first_byte: int) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        check_first_byte(first_byte)
    assert caught.value.reason_code is ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "first_byte", [0x00, 0x0F, 0x11, 0x36, 0x37, 0x38, 0x39, 0x3E, 0x41, 0x51, 0x60, 0x63, 0x71, 0x80, 0xA0, 0xC1, 0xE1, 0xF1]
)
def test_reserved_types_flags_and_qos_3_are_malformed(first_byte: int) -> None:
    """[MQTT-2.1.3-1] [MQTT-3.3.1-2] [MQTT-3.3.1-4]"""
    with pytest.raises(ProtocolViolation) as caught:
        check_first_byte(first_byte)
    assert caught.value.reason_code is ReasonCode.MALFORMED_PACKET


def test_the_buffer_of_a_large_packet_is_freed() -> None:
    large = packet(0x30, bytes(100_000))
    buffers = [FrameBuffer(1 << 20) for _ in range(20)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for buffer in buffers:
            buffer.feed(large)
            assert buffer.next_packet() == (large, 4)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < len(large)
