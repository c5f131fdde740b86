"""The packets that one connection writes, in the MQTT version of its device, and none of them larger than the device allows."""

from contextlib import suppress
from dataclasses import dataclass, field

from sinks.mqtt.codec.packets import ConnAck, Disconnect, ServerPacket
from sinks.mqtt.connection.handshake import V311, Codec
from state.errors import ProtocolViolation
from state.model import ReasonCode


@dataclass(slots=True, eq=False)
class DeviceOutput:
    """Collects the packets that are to be written to one device.

    Attributes:
        packets: Encoded packets, in the order of writing.
        codec: The codec of the MQTT version of CONNECT.
        max_packet_size_bytes: The Maximum Packet Size of CONNECT; None = no limit.
    """

    packets: list[bytes] = field(default_factory=list)
    codec: Codec = V311
    max_packet_size_bytes: int | None = None

    def write(self, packet: ServerPacket) -> None:
        self.packets.append(self.codec.encode(packet))

    def write_first_that_fits(self, *candidates: ConnAck | Disconnect) -> bool:
        """Writes the first one that can carry its reason code and is not larger than the client's Maximum Packet Size
        [MQTT-3.1.2-24] [MQTT-3.14.2-3]. False: there is none."""
        for packet in candidates:
            with suppress(ValueError):
                data = self.codec.encode(packet)
                if self._fits(data):
                    self.packets.append(data)
                    return True
        return False

    def fitting(self, data: bytes) -> bytes:
        """Returns an answer. One that does not fit ends the connection: it is owed, so the client cannot be left without it.
        Raises ProtocolViolation."""
        if not self._fits(data):
            raise ProtocolViolation(
                f"an answer of {len(data)} bytes is larger than the client's Maximum Packet Size",
                reason_code=ReasonCode.PACKET_TOO_LARGE,
            )
        return data

    def _fits(self, data: bytes) -> bool:
        return self.max_packet_size_bytes is None or len(data) <= self.max_packet_size_bytes
