"""The device: one socket at a time, and its half of every QoS 2 handshake."""

from collections.abc import Iterator
from typing import Final

from sinks.mqtt.codec.packets import Publish, PubRel
from tests.properties.fast_path.account import Account
from tests.properties.fast_path.gateways import Gateways
from tests.properties.fast_path.packets import ConnAckToDevice, DisconnectToDevice, answer_packet, connect_packet
from tests.properties.fast_path.simulated_connection import SimulatedConnection
from tests.properties.fast_path.steps import CLIENT, Shared, Step

_MOST_CONNECTIONS: Final = 6
_DISCONNECT: Final = b"\xe0\x00"
_QUOTA_EXCEEDED: Final = 0x97
_GIVES_UP_AFTER_MS: Final = 1_500
"""The device's patience, in ms, on a connection that is neither closed nor refused."""


class SimulatedDevice:
    """connection: its socket, None = it has none; also one that the gateway has closed without its knowledge.

    _held: the names of QoS 2 messages between PUBREC and PUBREL, by packet id.
    """

    def __init__(self, client_id: str, shared: Shared, gateways: Gateways) -> None:
        self.client_id = client_id
        self.connection: SimulatedConnection | None = None
        self._shared, self._gateways = shared, gateways
        self._held: dict[int, str] = {}

    @property
    def is_cut_off(self) -> bool:
        """True if the device has no connection that could serve it."""
        return self.connection is None or self.connection.is_over

    def goes_on(self) -> bool:
        """Reads and answers. False: there is nothing to read."""
        if self.connection is None or not self.connection.is_there or not self.connection.down:
            return False
        self._read(self.connection)
        return True

    def connect(self, *, clean_start: bool, expiry_s: int | None = None) -> None:
        """Connects on a new socket; unread bytes of the old one are lost. expiry_s: None = the scenario's."""
        scenario = self._shared.scenario
        if self.connection is not None:
            self._shared.now_ms += _GIVES_UP_AFTER_MS
            self._shared.faults_left = max(0, self._shared.faults_left - 1)
            self.connection.down.clear()
            self.leave()
        version = scenario.versions[(len(self._gateways.connections) + 1) % len(scenario.versions)]
        self.connection = self._gateways.open(version)
        self.connection.up.append(
            connect_packet(
                version,
                self.client_id,
                clean_start=clean_start,
                expiry_s=scenario.expiry_s if expiry_s is None else expiry_s,
                receive_maximum=scenario.receive_maximum,
            )
        )

    def leave(self) -> None:
        if self.connection is not None:
            self.connection.has_device = False
            self.connection = None

    def _read(self, connection: SimulatedConnection) -> None:
        """The next packet."""
        raise NotImplementedError

    def _connects(self, takeovers: int) -> Iterator[Step]:
        """takeovers: the weight while it has a connection."""
        if len(self._gateways.connections) < _MOST_CONNECTIONS and (self.connection is None or self._shared.faults_left):
            for clean_start in (False, True) if self._shared.scenario.clean_starts else (False,):
                yield Step(
                    8 if self.connection is None else takeovers,
                    f"{self.client_id} connects, clean start {clean_start}",
                    lambda clean_start=clean_start: self.connect(clean_start=clean_start),
                )

    def _is_new(self, publish: Publish, name: str) -> bool:
        """Returns False for a QoS 2 message that the device holds already; holds any other of QoS 2."""
        if publish.qos < 2:
            return True
        held = self._held.get(publish.packet_id)
        assert held in (None, name), f"{name} under packet id {publish.packet_id}, which the device holds for {held}: lost"
        self._held[publish.packet_id] = name
        return held is None


class Device(SimulatedDevice):
    """Keeps to the sessions that the engine has begun: by the connection with which each has begun, the one that it read last."""

    def __init__(self, shared: Shared, account: Account, gateways: Gateways) -> None:
        super().__init__(CLIENT, shared, gateways)
        self._account = account
        self._sessions: set[int] = set()
        self._session = 0

    # --- what can happen ------------------------------------------------------------------------------------------------------

    def next_steps(self) -> Iterator[Step]:
        connection, scenario = self.connection, self._shared.scenario
        if connection is not None and connection.down:
            yield Step(40, "the device reads and answers", lambda: self._read(connection))
            yield Step(1, "the device reads, its answer is lost", lambda: self._read(connection, answers=False))
            if scenario.refusals and connection.version == 5:
                yield Step(1, "the device refuses", lambda: self._read(connection, reason_code=_QUOTA_EXCEEDED))
        elif connection is not None and connection.is_over:
            yield Step(8, "the device finds its socket closed", self.leave)
        elif connection is not None and scenario.continues:
            yield Step(6, "the device disconnects", self.disconnect)
        yield from self._connects(2)

    # --- its connections ------------------------------------------------------------------------------------------------------

    def disconnect(self) -> None:
        """Sends DISCONNECT, and closes the socket."""
        if self.connection is not None:
            self.connection.up.append(_DISCONNECT)
            self.leave()

    def session_began(self, connection_id: int) -> None:
        """The engine has begun a new session with this connection."""
        self._sessions.add(connection_id)

    def _keep_to_session(self, connection: SimulatedConnection) -> None:
        """Forgets its session if the connection belongs to another one, even if the CONNACK that says so never came.

        MQTT has no way to tell the client, at its next CONNECT, that the session it finds is not the one it knew. "Exactly once"
        holds for as long as the session lives.
        """
        connection_id = connection.real.connection_id
        session = max((began for began in self._sessions if began <= connection_id), default=0)
        if session != self._session:
            self._session = session
            self._held.clear()

    # --- what it reads --------------------------------------------------------------------------------------------------------

    def _read(self, connection: SimulatedConnection, *, answers: bool = True, reason_code: int = 0) -> None:
        """The next packet. reason_code: with which it refuses a message that it does not have, 0 = it does not."""
        self._keep_to_session(connection)
        answer = b""
        packet = connection.down.popleft()
        match packet:
            case ConnAckToDevice():
                if packet.reason_code:
                    self.leave()
                elif not packet.session_present:
                    self._held.clear()
            case DisconnectToDevice():
                self.leave()
            case PubRel():
                self._held.pop(packet.packet_id, None)
                answer = answer_packet(0x70, packet.packet_id)
                if answers:
                    connection.unanswered.discard(packet.packet_id)
            case Publish():
                if not self._may_refuse(packet):
                    reason_code = 0
                if reason_code:
                    self._account.refused.add(_name(packet))
                    connection.unanswered.discard(packet.packet_id)
                else:
                    self._take(packet)
                if packet.qos:
                    answer = answer_packet(0x40 if packet.qos == 1 else 0x50, packet.packet_id, reason_code)
                if packet.qos == 1 and answers:
                    connection.unanswered.discard(packet.packet_id)
        if answer and answers:
            connection.up.append(answer)

    def _may_refuse(self, publish: Publish) -> bool:
        """True if the device has not accepted this message before."""
        return publish.qos > 0 and publish.packet_id not in self._held and not self._account.got[_name(publish)]

    def _take(self, publish: Publish) -> None:
        name = _name(publish)
        if self._is_new(publish, name):
            self._account.received(name)


def _name(publish: Publish) -> str:
    """Returns the name of the message."""
    return publish.payload.decode().rstrip()
