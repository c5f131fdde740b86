import pytest

from sinks.mqtt.codec import framing
from sinks.mqtt.codec.acknowledgements import encode_acknowledgement, plain_acknowledgement
from sinks.mqtt.connection.handshake import V5, V311, Codec

PLAIN = [framing.PUBACK, framing.PUBREC, framing.PUBREL, framing.PUBCOMP]


@pytest.mark.parametrize("codec", [V311, V5], ids=["3.1.1", "5"])
@pytest.mark.parametrize("first_byte", PLAIN)
@pytest.mark.parametrize("packet_id", [1, 0x80, 0x1234, 0xFFFF])
def test_a_plain_one_is_what_the_decoders_read(codec: Codec, first_byte: int, packet_id: int) -> None:
    packet = encode_acknowledgement(first_byte, packet_id)
    assert plain_acknowledgement(packet) == packet_id
    decoded = codec.decode(packet, 2)
    assert (type(decoded).__name__.upper(), decoded.packet_id, decoded.reason_code) == (  # type: ignore[union-attr]
        {framing.PUBACK: "PUBACK", framing.PUBREC: "PUBREC", framing.PUBREL: "PUBREL", framing.PUBCOMP: "PUBCOMP"}[first_byte],
        packet_id,
        0,
    )


@pytest.mark.parametrize(
    "packet",
    [
        b"\x40\x02\x00\x00",  # packet id 0
        b"\x40\x03\x00\x01\x10",  # a reason code
        b"\x40\x01\x00",
        b"\x30\x02\x00\x00",
        b"\xc0\x00",
        b"\x82\x02\x00\x01",
    ],
)
def test_everything_else_is_left_to_the_decoders(packet: bytes) -> None:
    assert plain_acknowledgement(packet) == 0
