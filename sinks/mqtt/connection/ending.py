"""The end of a connection: what the device and the engine are told, and how long it waits for what came before it.

1. After a protocol error the gateway reads nothing more from the device. It answers what it accepted before, and then closes.
   Without these answers a device that exceeds our Receive Maximum would send the same publications again after each reconnect.
2. The engine hears of each end once: `ClientDisconnected` or `ConnectionLost`. It hears nothing after its own `CloseConnection`
   if the client has another connection, or if that command came instead of CONNACK. After a takeover it hears of the end only if
   the device had not answered a message: the device may have died on it (protocol.md, section 2).
3. The mark that says how long the session is kept follows when Kafka has that end. So the session reads the end, and all before
   it, ahead of any CONNECT whose gateway has read the mark (state/records/session_marks.py).
"""

from dataclasses import dataclass
from typing import Final

from sinks.mqtt.codec.packets import ConnAck, Disconnect
from sinks.mqtt.connection.append_queue import Append, AppendQueue
from sinks.mqtt.connection.output import DeviceOutput
from sinks.mqtt.connection.phases import BEFORE_CONNACK, DEVICE_FAILED, OPEN, VIOLATION, CloseReason, Phase
from sinks.mqtt.metrics import GatewayCounters
from state.events import ClientDisconnected, ConnectionLost
from state.model import PacketId, ReasonCode
from state.records.events import encode_event

TAKEN_OVER: Final = CloseReason("another connection uses this client id", "engine", ReasonCode.SESSION_TAKEN_OVER)


@dataclass(slots=True, eq=False)
class Ending:
    """How far a connection is on its way to the end.

    Attributes:
        pending: the connection ends by it when everything before it is answered, or confirmed; what the device sends now is
            dropped. None = there is no such reason.
        peer_gone: no byte will come from the device any more.
        is_told: the engine knows that the connection ends.
    """

    _records: AppendQueue
    _output: DeviceOutput
    _counters: GatewayCounters
    pending: CloseReason | None = None
    peer_gone: bool = False
    is_told: bool = False

    def settled(self) -> CloseReason | None:
        """Returns the pending reason once no answer is owed, or, if it is no protocol error, no confirmation."""
        why = self.pending
        if why is None:
            return None
        records = self._records
        is_owed = records.owes_answers and not self.peer_gone if why.cause == VIOLATION else records.unconfirmed > 0
        return None if is_owed else why

    def tell(self, event: ClientDisconnected | ConnectionLost, mark: Append | None) -> None:
        """Adds the last event of the connection.

        Args:
            mark: What the connection says of its session afterwards; None = nothing.
        """
        self.is_told = True
        self._records.add(Append(encode_event(event), is_farewell=True, then=mark, delays_lookups=mark is not None))

    def tell_lost(
        self, connection_id: int, why: CloseReason, reconnect_grace_ms: int, unanswered: PacketId, mark: Append | None
    ) -> None:
        """Adds ConnectionLost.

        Args:
            unanswered: The message that the device may have failed on. It is told only if the device may be to blame for the end.
            mark: As in `tell`.
        """
        if why.cause not in DEVICE_FAILED and why is not TAKEN_OVER:
            unanswered = 0
        text, grace_ms = why.text, reconnect_grace_ms
        lost = ConnectionLost(connection_id=connection_id, reason=text, reconnect_grace_ms=grace_ms, unanswered=unanswered)
        self.tell(lost, mark)

    def write_last_packet(self, phase: Phase, why: CloseReason, words: str) -> None:
        """Counts the end, and writes CONNACK or DISCONNECT where the device may be told.

        Args:
            words: The reason string for the device.
        """
        reason_code = why.reason_code
        if phase in BEFORE_CONNACK:  # no DISCONNECT before CONNACK [MQTT-3.14.0-1]
            self._counters.connections_refused[reason_code] += 1
            if reason_code:
                unavailable = ConnAck(reason_code=ReasonCode.SERVER_UNAVAILABLE)
                self._output.write_first_that_fits(ConnAck(reason_code=reason_code), unavailable)
        elif phase in OPEN:
            self._counters.connections_lost[why.cause] += 1
            if reason_code:
                self._output.write_first_that_fits(
                    Disconnect(reason_code=reason_code, reason=words),
                    Disconnect(reason_code=reason_code),
                    Disconnect(reason_code=ReasonCode.UNSPECIFIED_ERROR),
                )
