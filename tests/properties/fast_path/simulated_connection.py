"""Simulates a connection at its gateway, and what is on the way from and to it."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from sinks.mqtt.access.grant import EVERYTHING
from sinks.mqtt.codec.packets import Publish
from sinks.mqtt.connection.append_queue import Append, AppendTopic
from sinks.mqtt.connection.connection import WireConnection
from sinks.mqtt.connection.effects import Announce, Effects, LogIn, LookForLater, LookUp, Register, Registration
from sinks.mqtt.connection.left_session import LeftSession
from sinks.mqtt.connection.phases import CloseReason, Phase
from sinks.mqtt.limits.connect_queue import Turn
from state.commands import CloseConnection, OfferPublish
from state.events import ConnectionLost
from state.model import ReasonCode
from state.records.commands import decode_command_batch
from state.records.events import encode_event
from tests.properties.fast_path.kafka import Kafka
from tests.properties.fast_path.packets import ConnAckToDevice, DisconnectToDevice, ToDevice, read_packets
from tests.properties.fast_path.steps import Shared, Step

_OFFERS_REPEATED: Final = 3


class Host(Protocol):
    """The gateway, as a connection sees it."""

    def register(self, connection: "SimulatedConnection", request: Register) -> Registration: ...
    def is_newest(self, connection: "SimulatedConnection") -> bool: ...
    def announced(self, connection: "SimulatedConnection") -> None: ...
    def left(self, session: LeftSession | None) -> None: ...


class SimulatedConnection:
    """real: the product's connection. host: gives it an id, and looks for a later one. down: packets written and not
    read by the device; up: the other way. unanswered: packet ids on the wire, by the device's own account. has_device: the device
    is at the other end of the socket; it says so itself.

    _waiting: appends given to Kafka and not in the log. _landed: appends that are in the log (None) or failed, of which the
    gateway has not heard. _offers_read: the newest offers read, which may come again.

    A gateway that is frozen does nothing; when its lease has passed, others speak for it. One that has crashed is gone.
    """

    def __init__(
        self,
        number: int,
        real: WireConnection,
        version: int,
        shared: Shared,
        kafka: Kafka,
        host: Host,
    ) -> None:
        self._label = f"k{number}:"
        self._host = host
        self._look_asked_ms: int | None = None
        self._shared, self._kafka = shared, kafka
        self.real, self.version = real, version
        self.opened_ms = shared.now_ms
        self.has_device = True
        self.commands: deque[bytes] = deque()
        self.offers: deque[OfferPublish] = deque()
        self.down: deque[ToDevice] = deque()
        self.up: deque[bytes] = deque()
        self.unanswered: set[int] = set()
        self._waiting: deque[Append] = deque()
        self._landed: deque[tuple[Append, Exception | None]] = deque()
        self._offers_read: deque[OfferPublish] = deque(maxlen=_OFFERS_REPEATED)
        self._written: set[int] = set()
        self._has_lost_device = self._is_frozen = self._has_crashed = self._lease_has_passed = self._is_told_lost = False

    @property
    def is_there(self) -> bool:
        """A gateway that works holds it."""
        return not self._is_frozen and not self.is_over

    @property
    def awaits_session(self) -> bool:
        """Its gateway works, and the session has not accepted it."""
        return self.is_there and self.real.phase is not Phase.CONNECTED

    @property
    def is_over(self) -> bool:
        return self._has_crashed or self.real.is_closed

    # --- what can happen ------------------------------------------------------------------------------------------------------

    def next_steps(self) -> Iterator[Step]:
        if self._waiting:
            for index in self._next_of_each_topic():
                yield self._step(self._shared.scenario.landing, "an append lands", lambda index=index: self._land(index))
            if self._shared.faults_left and self.is_there:
                for index in range(min(3, len(self._waiting))):
                    yield self._step(4, f"append {index} fails", lambda i=index: self._fail(i, lands_late=False))
                    yield self._step(4, f"append {index} fails and lands late", lambda i=index: self._fail(i, lands_late=True))
        if self._others_speak and self.commands:
            yield self._step(4, "another gateway reads a command", self._read_by_another)
        if self._others_speak and not self._is_told_lost:
            yield self._step(1, "its lease has expired", self._tell_lost)
        if self._is_frozen:
            if not self._lease_has_passed:
                yield self._step(2, "its lease passes", self._pass_lease)
            yield self._step(4, "its gateway wakes up", self.wake)
        if not self._is_frozen and not self._has_crashed:
            if self._landed:
                yield self._step(30, "hears of an append", self._confirm)
            if self._look_asked_ms is not None:
                yield self._step(30, "looks for a later connection", self._look)
        if self.is_there:
            yield from self._steps_of_a_working_gateway()

    def _steps_of_a_working_gateway(self) -> Iterator[Step]:
        if self.commands:
            yield self._step(30, "reads commands", self._read_commands)
        if self.offers:
            yield self._step(60, "reads an offer", self.read_offer)
            yield self._step(8, "reads an offer, which comes again", lambda: self._hand_over(self.offers[0]))
            yield self._step(1, "reads the newest offer first", lambda: self._hand_over(self.offers.pop()))
            yield self._step(1, "an offer is lost", self.offers.popleft)
            yield self._step(1, "is under pressure", lambda: self._hand_over(self.offers.popleft(), under_pressure=True))
        if self._shared.scenario.late_offers and self._offers_read:
            for index, offer in enumerate(self._offers_read):
                yield self._step(5, f"reads an offer of before, {index}", lambda offer=offer: self._hand_over(offer))
        if self.up:
            yield self._step(30, "hears the device", self._hear)
        if not self.has_device:
            yield self._step(3, "notices that the device has left", self.lose_device)
        if self._shared.faults_left and self._shared.scenario.stops:
            yield self._step(2, "its gateway freezes", self._freeze)
            yield self._step(2, "its gateway crashes", self._crash)

    def _step(self, weight: int, what: str, run: Callable[[], object]) -> Step:
        return Step(weight, f"{self._label} {what}", run)

    def goes_on(self) -> bool:
        """Does one step that is due. Returns False if none is due but the device's reads."""
        if self._waiting:
            self._land()
        elif self._has_crashed and self.commands:
            self._read_by_another()
        elif self._has_crashed and not self._is_told_lost:
            self._tell_lost()
        elif self._is_frozen or self._has_crashed:
            return False
        elif self._landed:
            self._confirm()
        elif self._look_asked_ms is not None:
            self._look()
        elif not self.is_there:
            return False
        elif not self.has_device and not self._has_lost_device:
            self.lose_device()
        elif self.commands:
            self._read_commands()
        elif self.offers:
            self.read_offer()
        elif self.up:
            self._hear()
        else:
            return False
        return True

    # --- Kafka ----------------------------------------------------------------------------------------------------------------

    def _next_of_each_topic(self) -> list[int]:
        """Returns the oldest append of each topic: Kafka keeps the order within a partition only."""
        first: dict[AppendTopic, int] = {}
        for index, append in enumerate(self._waiting):
            first.setdefault(append.topic, index)
        return list(first.values())

    def _land(self, index: int = 0) -> None:
        append = self._waiting[index]
        del self._waiting[index]
        self._kafka.append(append)
        self._is_told_lost |= append.is_farewell
        self._landed.append((append, None))

    def _fail(self, index: int, *, lands_late: bool) -> None:
        self._shared.faults_left -= 1
        append = self._waiting[index]
        del self._waiting[index]
        if append.is_farewell:  # repeated until it is in the log
            self._waiting.append(append)
            return
        if lands_late:
            self._kafka.may_come_late(append)
        self._landed.append((append, ConnectionError("Kafka")))

    def _confirm(self) -> None:
        append, error = self._landed.popleft()
        if error is None and self.real.settle(append):
            self._feed(self.real.write_settled)
            return
        self._feed(self.real.confirm, append, ReasonCode.SUCCESS if error is None else ReasonCode.SERVER_BUSY)

    def _look(self) -> None:
        """Looks for a later connection of the client; its answer is heard at once."""
        asked_ms, self._look_asked_ms = self._look_asked_ms, None
        is_newest = not self._lease_has_passed and self._host.is_newest(self)
        self._feed(self.real.looked_for_later, is_newest, asked_ms)

    # --- the engine and the routers ---------------------------------------------------------------------------------------------

    def _read_commands(self) -> None:
        batch = decode_command_batch(self.commands.popleft())
        assert not any(isinstance(command, OfferPublish) for command in batch.commands)
        self._feed(self.real.apply, batch.commands, batch.code)

    def read_offer(self) -> None:
        """The oldest one; there must be one."""
        self._offers_read.append(self.offers[0])
        self._hand_over(self.offers.popleft())

    def _hand_over(self, offer: OfferPublish, *, under_pressure: bool = False) -> None:
        self._feed(self.real.offer, [offer], under_pressure, self._shared.now_ms)

    def repeat_list(self) -> None:
        """A list of this client that is lower than another one was read."""
        self._feed(self.real.repeat_list)

    # --- the device -------------------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        self._feed(self.real.receive, self.up.popleft())

    def lose_device(self) -> None:
        """The socket is gone, and what was on the way."""
        self._has_lost_device = True
        self.up.clear()
        self.hang_up()

    def hang_up(self) -> None:
        """The gateway hears that the socket is closed."""
        self._feed(self.real.peer_closed)

    def _feed(self, call: Callable[..., Effects], *arguments: Any) -> None:
        """Calls the connection and carries its effects out, as a host does."""
        effects = call(*arguments, self._shared.now_ms)
        self._waiting += effects.appends
        packets = read_packets(effects.write, self.version)
        for packet in packets:
            if isinstance(packet, Publish) and packet.qos and not (packet.dup and packet.packet_id in self._written):
                self._put_on_wire(packet)
        if self.has_device:
            self.down += packets
        if effects.close:
            self.up.clear()
            left, self.real.left = self.real.left, None
            self._host.left(left)
        for request in effects.requests:
            if isinstance(request, Register):
                self._feed(self.real.registered, request, self._host.register(self, request), Turn.NOW)
            elif isinstance(request, LogIn):
                self._feed(self.real.logged_in, EVERYTHING, self.real.settings.accept_timeout_ms)
            elif isinstance(request, LookUp):
                self._feed(self.real.looked_up, True)
            elif isinstance(request, Announce):
                self._host.announced(self)
            elif isinstance(request, LookForLater):
                self._look_asked_ms = self._shared.now_ms

    def _put_on_wire(self, publish: Publish) -> None:
        """Sends a PUBLISH for the first time on this connection."""
        packet_id = publish.packet_id
        self._written.add(packet_id)
        assert publish.dup or packet_id not in self.unanswered, f"packet id {packet_id} twice on the wire"
        self.unanswered.add(packet_id)
        limit = self._shared.scenario.receive_maximum
        assert self.version < 5 or len(self.unanswered) <= limit, "more than the Receive Maximum"

    # --- gateways that stop -----------------------------------------------------------------------------------------------------

    @property
    def _others_speak(self) -> bool:
        """True if other processes write events for this gateway's connections."""
        return self._has_crashed or self._lease_has_passed

    def _freeze(self) -> None:
        self._shared.faults_left -= 1
        self._is_frozen = True

    def _pass_lease(self) -> None:
        self._lease_has_passed = True

    def wake(self) -> None:
        """Thaws a frozen gateway. The host inspects its lease first, and closes its connections if the lease has expired."""
        if not self._is_frozen:
            return
        self._is_frozen = False
        if self._lease_has_passed:
            passed = CloseReason("the lease of the gateway has passed", "gateway", ReasonCode.SERVER_BUSY)
            effects = self.real.close(passed, 0, self._shared.now_ms)
            self._waiting += effects.appends
            packets = read_packets(effects.write, self.version)
            assert all(isinstance(packet, DisconnectToDevice | ConnAckToDevice) for packet in packets), packets
            if self.has_device:
                self.down += packets

    def _crash(self) -> None:
        self._shared.faults_left -= 1
        self._has_crashed = True
        self._kafka.may_come_late(*self._waiting)
        self._waiting.clear()

    def _read_by_another(self) -> None:
        for command in decode_command_batch(self.commands.popleft()).commands:
            if not isinstance(command, CloseConnection | OfferPublish) and not self._is_told_lost:
                self._tell_lost()

    def _tell_lost(self) -> None:
        self._is_told_lost = True
        self._kafka.append(Append(encode_event(ConnectionLost(connection_id=self.real.connection_id, reason="gone"))))
