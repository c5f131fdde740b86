"""What one connection has to give away: packets for the device, records for Kafka, and answers that wait for a record."""

from contextlib import suppress
from typing import Final

from sinks.mqtt.codec.packets import ConnAck, Disconnect, ServerPacket
from sinks.mqtt.connection.appends import Append, AppendQueue
from sinks.mqtt.connection.handshake import V311, Codec
from sinks.mqtt.limits.unconfirmed import Unconfirmed
from sinks.mqtt.settings import GatewaySettings
from state.errors import ProtocolViolation
from state.events import ClientDisconnected, ConnectionLost, GatewayEvent
from state.model import ReasonCode
from state.records.events import encode_event

_CONNACK: Final = 2
"""The packet type; it is the first packet of a connection [MQTT-3.2.0-1]."""


class ConnectionOutput:
    """packets: for the device, encoded, in their order. records: for Kafka. encode: of the version that the device speaks.
    total: see AppendQueue."""

    __slots__ = ("_maximum_packet_size_bytes", "encode", "packets", "records")

    def __init__(self, settings: GatewaySettings, total: Unconfirmed | None = None) -> None:
        self.packets: list[bytes] = []
        self.records = AppendQueue(settings, total)
        self.encode = V311.encode
        self._maximum_packet_size_bytes: int | None = None

    def client_said(self, codec: Codec, maximum_packet_size_bytes: int | None) -> None:
        """CONNECT has come. maximum_packet_size_bytes: None = no limit."""
        self.encode = codec.encode
        self._maximum_packet_size_bytes = maximum_packet_size_bytes

    # --- to the device --------------------------------------------------------------------------------------------------------

    def write(self, packet: ServerPacket) -> None:
        """At once."""
        self.packets.append(self.encode(packet))

    def write_if_it_fits(self, packet: ServerPacket) -> bool:
        """False: it is larger than the client's Maximum Packet Size [MQTT-3.1.2-24], and nothing is written."""
        data = self.encode(packet)
        if self._fits(data):
            self.packets.append(data)
            return True
        return False

    def take(self) -> bytes:
        """What is to be written, all in one."""
        packets = self.packets
        if not packets:
            return b""
        data = packets[0] if len(packets) == 1 else b"".join(packets)
        packets.clear()
        return data

    def drop_packets(self) -> bool:
        """What is not taken yet goes nowhere. True: CONNACK was among it, so the client has no answer yet."""
        is_unanswered = bool(self.packets) and self.packets[0][0] >> 4 == _CONNACK
        self.packets.clear()
        return is_unanswered

    def refuse(self, reason_code: int) -> None:
        """In place of CONNACK 0x00."""
        self._write_first_that_fits(ConnAck(reason_code=reason_code), ConnAck(reason_code=ReasonCode.SERVER_UNAVAILABLE))

    def say_goodbye(self, reason_code: int, words: str) -> None:
        self._write_first_that_fits(
            Disconnect(reason_code=reason_code, reason=words),
            Disconnect(reason_code=reason_code),
            Disconnect(reason_code=ReasonCode.UNSPECIFIED_ERROR),
        )

    def _write_first_that_fits(self, *packets: ConnAck | Disconnect) -> None:
        """The first one that can carry its reason code and is not too large for the client [MQTT-3.14.2-3]; or none."""
        for packet in packets:
            with suppress(ValueError):
                if self.write_if_it_fits(packet):
                    return

    def answer_in_order(self, answer: ServerPacket) -> None:
        """An answer that needs no record, but has its turn. Raises ProtocolViolation like `tell`."""
        self.records.add_answer(self._answer(answer))
        self.records.take_answers(self.packets)

    # --- to the engine --------------------------------------------------------------------------------------------------------

    def tell(self, event: GatewayEvent, answer: ServerPacket | None = None) -> Append:
        """An event, and what to answer when it is in the log. Raises ProtocolViolation for an answer that is too large."""
        append = Append(encode_event(event), None if answer is None else self._answer(answer))
        self.records.add(append)
        return append

    def tell_acknowledgement(self, event: bytes, answer: bytes | None = None) -> None:
        """The same of an `Acknowledgement`, which may share its record with others. Both are encoded."""
        self.records.add_acknowledgement(event, None if answer is None else self._fitting(answer))

    def tell_end(self, event: ClientDisconnected | ConnectionLost) -> None:
        """The last event of the connection."""
        append = Append(encode_event(event))
        append.is_farewell = True
        self.records.add(append)

    def _answer(self, packet: ServerPacket) -> bytes:
        return self._fitting(self.encode(packet))

    def _fitting(self, data: bytes) -> bytes:
        """An answer that does not fit ends the connection: it is owed, so the client cannot be left without it."""
        if not self._fits(data):
            raise ProtocolViolation(
                f"an answer of {len(data)} bytes is larger than the client's Maximum Packet Size",
                reason_code=ReasonCode.PACKET_TOO_LARGE,
            )
        return data

    def _fits(self, data: bytes) -> bool:
        limit_bytes = self._maximum_packet_size_bytes
        return limit_bytes is None or len(data) <= limit_bytes
