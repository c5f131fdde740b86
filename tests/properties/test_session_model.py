"""A session between a random backend, a random network and a random device: what must hold whatever happens.

After every activation:

 * the activation has been executed twice, the second time on a decoded copy, with the same commands and the same blob;
 * the window is within its limit, packet ids are unique and in range, and a new PUBLISH has an id that was free;
 * DUP = 1 exactly on the repetitions of an exchange, under its own id; no PUBLISH after PUBREC under that id [MQTT-4.3.3-6];
 * first transmissions are in the order of submission within a priority, QoS 0 for itself and QoS 1 and 2 together
   [MQTT-4.6.0-6], and repetitions in the order of first transmissions [MQTT-4.6.0-1];
 * a QoS 0 message passes an earlier one of QoS 1 or 2 of its priority only where that one found no slot, and never waits for one;
 * a message goes with the QoS that subscriptions granted when it came;
 * an MQTT 5 device never has more unanswered messages than its Receive Maximum, those that were given up included, and no new
   QoS 2 message comes under an id that it still keeps;
 * a full queue gives up what ranks lowest, the newcomer included, and is never fuller than its limits;
 * a message with `deliver-at` is sent no earlier, one that is replaced or cancelled is never sent, nor one with a collapse key
   after a later one with the same; and no span of time has more first transmissions than `max_send_rate` allows;
 * every message that was taken is held, or has left with exactly one receipt; one that was refused may come again and be taken;
 * the application on the device got a QoS 2 message at most once, and exactly once if the receipt says delivered;
 * a QoS 2 publication of the device was handed on at most once, and exactly once when the log has been read; more often only if
   its session, and with it the packet id, ended before a repetition of it was read: the repetition lay unread in the log, or a
   gateway that had lost its lease took it later;
 * connections are accepted in the order of their ids only, so a CONNECT that a stalled gateway appends late ends nothing, and no
   clock of a gateway makes anything of the above untrue;
 * the next deadline is in the future: a host that obeys it never spins.

In the end a good device on a good network empties the session.
"""

from collections import Counter, defaultdict, deque
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sinks.host.connection_ids import ConnectionIds, ConnectionKind, kind_of
from state.commands import (
    AcceptConnection,
    CloseConnection,
    Command,
    DropAwaitingRel,
    ForwardPublication,
    RecordTransition,
    SendPublish,
    SendPubRel,
    SendReceipt,
    Transition,
    WithdrawPublish,
)
from state.events import (
    CancelRequested,
    ClientConnected,
    ClientDisconnected,
    ConnectionLost,
    DeadlineReached,
    Event,
    GatewayEvent,
    MessageSubmitted,
    PublishReceived,
    PubRecReceived,
    SessionPurged,
    Subscribed,
    Unsubscribed,
)
from state.model import Message, Outcome, QoS, Subscription
from state.records.receipts import Receipt
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import Overflow, RetryMqtt5, SessionSettings
from tests.properties.device_and_gateway import Device, Gateway, HandOn, PubCompToDevice, Publication, PubRecToDevice, ToDevice

pytestmark = pytest.mark.no_cover  # every branch has a test that says what it is for; and a tracer doubles the time of this one

CLIENT = "device"
FILTERS_OF = {"down": (), "low/1": ("low/1", "low/#", "low/+"), "low/2": ("low/#", "low/+")}
"""The device's filters that match a topic, by topic."""
UNSENT = (Outcome.REPLACED, Outcome.CANCELLED)
FREES_NO_SLOT = (Outcome.SENT, Outcome.EXPIRED, Outcome.MAXLEN, Outcome.OFFLINE, Outcome.DUPLICATE, *UNSENT)
REFUSALS = (0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)

limits = st.builds(
    SessionSettings,
    max_inflight=st.sampled_from([1, 2, 3, 5]),
    prefetch=st.sampled_from([0, 0, 2]),
    later_retry_intervals_ms=st.sampled_from([(), (), (60_000,), (45_000, 400_000)]),
    retry_mqtt5=st.sampled_from(RetryMqtt5),
    delivery_limit=st.sampled_from([-1, 1, 3, 20]),
    crash_limit=st.sampled_from([-1, 1, 3, 20]),
    max_mqueue_len=st.sampled_from([0, 3, 3, 1_000]),
    max_mqueue_bytes=st.sampled_from([0, 40, 1_000_000]),
    max_backlog_bytes=st.sampled_from([0, 60, 1 << 26]),
    progress_timeout_ms=st.sampled_from([1_000, 30_000]),
    overflow=st.sampled_from(Overflow),
    mqueue_store_qos0=st.booleans(),
    max_awaiting_rel=st.sampled_from([0, 2, 100]),
    max_send_rate=st.sampled_from([0, 0, 0, 1, 4]),
)


class SessionModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_700_000_000_000
        self.log: deque[GatewayEvent | MessageSubmitted | CancelRequested] = deque()
        self.gateways: dict[int, Gateway] = {}
        self.gateway: Gateway | None = None
        self.clock_reads = 0
        self.clocks_ms = [0, 3_600_000]  # ahead of the engine's, of two processes that make connection ids
        self.ids = [self._new_ids(number) for number in range(2)]
        self.stalled: deque[ClientConnected] = deque()  # CONNECTs that were read and are not in the log yet
        self.newest_accepted = 0
        self.submitted: dict[str, Message] = {}
        self.granted: dict[str, QoS] = {}  # what is left of the QoS of the messages that the session knows
        self.queued: set[str] = set()
        self.taken: set[str] = set()
        self.receipts: dict[str, Outcome] = {}
        self.exchanges: dict[int, str] = {}  # packet id → message id, as far as the session goes
        self.began: dict[int, int] = {}  # packet id → number of the exchange, in the order of their first transmissions
        self.received: set[int] = set()  # packet ids of exchanges past PUBREC, as far as the session goes
        self.first_sent: defaultdict[tuple[bool, int], list[int]] = defaultdict(list)
        self.ever_sent: set[str] = set()
        self.keys: dict[str, bytes] = {}
        self.newest_of_key: dict[tuple[bytes, bool, int], int] = {}
        self.due_ms: dict[str, int] = {}
        self.sent_at_ms: list[int] = []
        self.uplink: Counter[bytes] = Counter()
        self.logged: set[bytes] = set()
        self.outlived: set[bytes] = set()  # contents that could still be repeated when their session ended
        self.numbers = 0

    @initialize(limits=limits, hand_on=st.sampled_from(["at PUBLISH", "at PUBREL"]), answers_pubrec=st.booleans())
    def begin(self, limits: SessionSettings, hand_on: HandOn, answers_pubrec: bool) -> None:
        self.settings = limits
        self.answers_pubrec = answers_pubrec
        self.session = Session(client_id=CLIENT, settings=limits)
        self.device = Device(hand_on=hand_on)

    # --- the backend --------------------------------------------------------------------------------------------------------

    @rule(
        qos=st.sampled_from([0, 1, 1, 2, 2]),
        life_s=st.sampled_from([None, None, None, 20]),
        count=st.integers(1, 4),
        topic=st.sampled_from(["down", "down", "low/1", "low/2"]),
        priority=st.sampled_from([0, 0, 0, 7]),
        key=st.sampled_from([None, None, None, b"k", b"l"]),
        delay_s=st.sampled_from([None, None, None, None, 0, 15, 200]),
    )
    def submit(
        self, qos: int, life_s: int | None, count: int, topic: str, priority: int, key: bytes | None, delay_s: int | None
    ) -> None:
        for _ in range(count):
            self.numbers += 1
            name = f"m{self.numbers:05}"
            headers: tuple[tuple[str, bytes], ...] = ()
            if key is not None:
                headers += (("collapse-key", key),)
                self.keys[name] = key
            if delay_s is not None:
                self.due_ms[name] = self.now_ms + delay_s * 1_000
                headers += (("deliver-at", b"%d" % self.due_ms[name]),)
            message = Message(
                message_id=name,
                topic=topic,
                payload=name.encode(),
                qos=QoS(qos),
                priority=priority,
                accepted_ms=self.now_ms,
                expires_at_ms=None if life_s is None else self.now_ms + life_s * 1_000,
                headers=headers,
            )
            self.submitted[name] = message
            self.log.append(MessageSubmitted(message=message, explicit_id=True))

    @precondition(lambda self: self.submitted)
    @rule()
    def submit_the_latest_again(self) -> None:
        """The repetition comes within the deduplication window, so it is the same message."""
        self.log.append(MessageSubmitted(message=self.submitted[max(self.submitted)], explicit_id=True))

    @precondition(lambda self: self.submitted)
    @rule(back=st.integers(1, 4))
    def cancel(self, back: int) -> None:
        self.log.append(CancelRequested(message_id=sorted(self.submitted)[-back:][0]))

    # --- connections --------------------------------------------------------------------------------------------------------

    def _new_ids(self, number: int) -> ConnectionIds:
        """Wrong as a clock may be, it reads no microsecond twice."""

        def clock_ns() -> int:
            self.clock_reads += 1
            return (self.now_ms + self.clocks_ms[number]) * 1_000_000 + self.clock_reads * 1_000

        return ConnectionIds(ConnectionKind(number), clock_ns=clock_ns)

    @rule(number=st.integers(0, 1), ahead_ms=st.sampled_from([0, -3_600_000, 3_600_000]), restarts=st.booleans())
    def a_clock_is_stepped(self, number: int, ahead_ms: int, restarts: bool) -> None:
        self.clocks_ms[number] = ahead_ms
        if restarts:
            self.ids[number] = self._new_ids(number)

    @rule(number=st.integers(0, 1), clean_start=st.booleans())
    def a_gateway_reads_a_connect_and_stalls(self, number: int, clean_start: bool) -> None:
        """The device does not wait for it."""
        if self.gateway is not None and self.gateway.open:
            self.gateway.lose()
        connection_id = self.ids[number].next()
        gateway = self.gateways[connection_id] = Gateway(connection_id, 4, self.log, answers_pubrec=self.answers_pubrec)
        gateway.open = False
        self.stalled.append(
            ClientConnected(
                connection_id=connection_id, commands_partition=0, clean_start=clean_start, session_expiry_interval_s=3_600
            )
        )

    @precondition(lambda self: self.stalled)
    @rule()
    def a_stalled_gateway_goes_on(self) -> None:
        connected = self.stalled.popleft()
        self.log += (connected, ConnectionLost(connection_id=connected.connection_id))

    @rule(
        number=st.integers(0, 1),
        version=st.sampled_from([4, 5]),
        clean_start=st.sampled_from([False, False, False, True]),
        expiry_s=st.sampled_from([0, 60, 3_600, 3_600, 0xFFFF_FFFF]),
        receive_maximum=st.sampled_from([1, 2, 65_535]),
    )
    def connect(self, version: int, clean_start: bool, expiry_s: int, receive_maximum: int, number: int = 0) -> None:
        """Connects; while connected it is a takeover, whose old socket dies here. number: which process it connects to."""
        if self.gateway is not None and self.gateway.open:
            self.gateway.lose()
        connection_id = self.ids[number].next()
        self.gateway = Gateway(
            connection_id,
            version,
            self.log,
            answers_pubrec=self.answers_pubrec,
            receive_maximum=receive_maximum if version == 5 else 65_535,
        )
        self.gateways[connection_id] = self.gateway
        self.log.append(
            ClientConnected(
                connection_id=connection_id,
                commands_partition=0,
                protocol_version=version,
                clean_start=clean_start,
                session_expiry_interval_s=expiry_s,
                receive_maximum=receive_maximum if version == 5 else 65_535,
            )
        )

    @precondition(lambda self: self.gateway and self.gateway.open)
    @rule()
    def lose_connection(self) -> None:
        self.gateway.lose()

    @rule()
    def an_operator_purges_the_session(self) -> None:
        self.log.append(SessionPurged())

    @precondition(lambda self: self.gateway and self.gateway.open)
    @rule()
    def the_lease_of_a_frozen_gateway_expires(self) -> None:
        """The log has the end of a connection that its gateway and the device still believe in, until one of them leaves."""
        self.log.append(ConnectionLost(connection_id=self.gateway.connection_id, reason="its gateway or bridge is gone"))

    @precondition(lambda self: self.gateway and self.gateway.open and self.gateway.accepted)
    @rule(expiry_s=st.sampled_from([None, None, 0, 60]))
    def disconnect(self, expiry_s: int | None) -> None:
        self.gateway.open = False
        self.gateway.wire.clear()
        self.log.append(ClientDisconnected(connection_id=self.gateway.connection_id, session_expiry_interval_s=expiry_s))

    # --- the device ---------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.gateway and self.gateway.wire)
    @rule(count=st.integers(1, 8), refusal=st.sampled_from([0, 0, 0, *REFUSALS]))
    def device_reads_and_answers(self, count: int, refusal: int) -> None:
        for _ in range(count):
            if self.gateway.wire:
                self._device_reads(self.gateway.wire.popleft(), refusal=refusal)

    @precondition(lambda self: self.gateway and self.gateway.wire)
    @rule()
    def device_reads_and_its_answer_is_lost(self) -> None:
        if not isinstance(self.gateway.wire[0], AcceptConnection):
            self._device_reads(self.gateway.wire.popleft(), answer=False)

    @precondition(lambda self: self.gateway and self.gateway.wire)
    @rule()
    def a_packet_is_lost(self) -> None:
        if not isinstance(self.gateway.wire[0], AcceptConnection):
            self.gateway.wire.popleft()

    @precondition(lambda self: self.gateway and self.gateway.open and self.gateway.accepted)
    @rule(topic_filter=st.sampled_from(["low/1", "low/#", "low/+"]), qos=st.sampled_from([0, 0, 1, None]))
    def device_subscribes(self, topic_filter: str, qos: int | None) -> None:
        """Subscribes at a QoS; None: unsubscribes."""
        if qos is None:
            self.log.append(Unsubscribed(connection_id=self.gateway.connection_id, topic_filters=(topic_filter,)))
        else:
            subscription = Subscription(topic_filter=topic_filter, qos=QoS(qos))
            self.log.append(Subscribed(connection_id=self.gateway.connection_id, subscriptions=(subscription,)))

    @precondition(lambda self: self.gateway and self.gateway.open and self.gateway.accepted)
    @rule()
    def device_publishes(self) -> None:
        device = self.device
        device.last_id = device.last_id % 7 + 1  # ids come round soon
        limit = self.settings.max_awaiting_rel if self.gateway.version == 5 else 0
        if device.last_id in device.publications or 0 < limit <= len(device.publications):
            return  # a device that keeps to the Receive Maximum of CONNACK, which MQTT 3.1.1 does not have
        if isinstance(next(iter(self.gateway.wire), None), AcceptConnection):
            return  # has not read CONNACK yet
        self.numbers += 1
        publication = Publication(packet_id=device.last_id, content=f"p{self.numbers}".encode())
        device.publications[publication.packet_id] = publication
        self._device_sends(publication)

    def _device_sends(self, publication: Publication) -> None:
        self.numbers += 1
        self.logged.add(publication.content)
        self.gateway.publish(publication, f"events-0-{self.numbers}")
        publication.sent = True

    def _device_reads(self, packet: ToDevice, *, refusal: int = 0, answer: bool = True) -> None:
        gateway, device = self.gateway, self.device
        refusal = refusal if gateway.version == 5 else 0
        match packet:
            case AcceptConnection():
                for publication in list(device.publications.values()):
                    if publication.received:
                        gateway.pubrel(publication.packet_id)
                    else:
                        self._device_sends(publication)
            case SendPublish(qos=QoS.AT_MOST_ONCE):
                device.take(packet)
            case SendPublish():
                if packet.qos == QoS.EXACTLY_ONCE and not packet.dup:
                    assert packet.packet_id not in device.received_ids, "a new message under an id that the device keeps"
                if refusal and packet.packet_id in device.received_ids:
                    refusal = 0  # it has taken this one before
                if not refusal:
                    device.take(packet)
                if answer and packet.qos == QoS.AT_LEAST_ONCE:
                    gateway.puback(packet.packet_id, refusal)
                elif answer:
                    gateway.pubrec(packet.packet_id, refusal)
            case SendPubRel():
                known = device.release(packet.packet_id)
                if answer:
                    gateway.pubcomp(packet.packet_id, 0 if known or gateway.version == 4 else 0x92)
            case PubRecToDevice():
                publication = device.publications.get(packet.packet_id)
                if publication is not None:
                    publication.received = True
                    if answer:
                        gateway.pubrel(packet.packet_id)
            case PubCompToDevice():
                publication = device.publications.get(packet.packet_id)
                if publication is not None and publication.received:
                    del device.publications[packet.packet_id]

    # --- the engine ---------------------------------------------------------------------------------------------------------

    @rule(count=st.sampled_from([1, 2, 5, 100]), passed_s=st.sampled_from([0, 0, 0.5, 1, 10, 30, 100, 301]))
    def engine_runs_a_micro_batch(self, count: int, passed_s: float) -> None:
        self.now_ms += round(passed_s * 1_000)
        self._activate([self.log.popleft() for _ in range(min(count, len(self.log)))])

    @rule(passed_s=st.sampled_from([0, 0.5, 10]))
    def a_good_round_trip(self, passed_s: float) -> None:
        """Handles the whole log, then reads and answers all packets on the wire. So an example gets further into a session."""
        self.engine_runs_a_micro_batch(count=1_000, passed_s=passed_s)
        if self.gateway is not None:
            for packet in list(self.gateway.wire):
                self.gateway.wire.popleft()
                self._device_reads(packet)

    @rule(
        number=st.integers(0, 1),
        version=st.sampled_from([4, 5]),
        clean_start=st.sampled_from([False, False, True]),
        expiry_s=st.sampled_from([0, 60, 3_600]),
    )
    def connect_and_read_connack(self, number: int, version: int, clean_start: bool, expiry_s: int) -> None:
        self.connect(version=version, clean_start=clean_start, expiry_s=expiry_s, receive_maximum=65_535, number=number)
        self.engine_runs_a_micro_batch(count=1_000, passed_s=0)
        if self.gateway.wire:
            self._device_reads(self.gateway.wire.popleft())

    @rule()
    def engine_runs_at_the_next_deadline(self) -> None:
        deadline_ms = self.session.next_deadline_ms()
        if deadline_ms is not None:
            self.now_ms = deadline_ms
            self._activate([DeadlineReached()])

    @precondition(lambda self: hasattr(self, "session") and not self.log and not (self.gateway and self.gateway.wire))
    @rule()
    def packet_ids_come_round(self) -> None:
        """Pretends that 32,767 other ids were used and are free again."""
        if not self.session.outbound.window:
            self.session.outbound.packet_ids.last = 0

    def _activate(self, events: list[Event]) -> None:
        self._expected_grants(events)
        if self.session.is_empty:
            self.newest_accepted = 0  # the host may have forgotten the session
        before = encode_session(self.session)
        limits = [self.session.outbound.window.limit + self.settings.prefetch, len(self.session.outbound.window)]
        again = decode_session(before, client_id=CLIENT, settings=self.settings)
        commands = self.session.handle_all(events, now_ms=self.now_ms)
        assert again.handle_all(events, now_ms=self.now_ms) == commands
        after = encode_session(self.session)
        assert encode_session(again) == after
        self.session = decode_session(after, client_id=CLIENT, settings=self.settings)
        self.taken.update(event.message.message_id for event in events if isinstance(event, MessageSubmitted))
        self._check(commands, events)
        self._check_grants()
        self._check_queue()
        limits += [c.send_quota + self.settings.prefetch for c in commands if isinstance(c, AcceptConnection)]
        assert len(self.session.outbound.window) <= max(limits)
        deadline_ms = self.session.next_deadline_ms()
        assert deadline_ms is None or deadline_ms > self.now_ms

    def _expected_grants(self, events: list[Event]) -> None:
        """Notes what the present subscriptions grant to new messages, if no other event can change them on the way."""
        if all(isinstance(event, MessageSubmitted | DeadlineReached) for event in events):
            for event in events:
                name = event.message.message_id if isinstance(event, MessageSubmitted) else ""
                if isinstance(event, MessageSubmitted) and name not in self.taken and name not in self.due_ms:
                    topic = event.message.topic
                    caps = [s.qos for s in self.session.outbound.subscriptions if s.topic_filter in FILTERS_OF[topic]]
                    self.granted[event.message.message_id] = min(event.message.qos, max(caps, default=event.message.qos))

    def _check_grants(self) -> None:
        outbound = self.session.outbound
        for delivery in [entry.delivery for entry in outbound.window] + list(outbound.queue):
            name = delivery.message.message_id
            assert self.granted.setdefault(name, delivery.qos) == delivery.qos, "another QoS than when it came"

    def _check_queue(self) -> None:
        outbound, limits = self.session.outbound, self.settings
        waiting = list(outbound.queue)
        if limits.max_mqueue_len:
            # A message that was refused by the device returns to its place, whatever the limit.
            fresh = [delivery for delivery in waiting if delivery.first_sent_ms is None]
            max_bytes = limits.max_mqueue_bytes
            if self.session.keeps_up:
                max_bytes = max_bytes and max(max_bytes, limits.max_backlog_bytes)
            else:
                assert len(fresh) <= limits.max_mqueue_len
            size_bytes = sum(delivery.size_bytes for delivery in fresh)
            assert not max_bytes or size_bytes <= max_bytes or len(fresh) == 1
        if self.session.connection is not None:
            if outbound.tokens(self.now_ms) != 0:
                assert not any(delivery.qos == QoS.AT_MOST_ONCE for delivery in waiting), "QoS 0 waits for a slot"
            assert not waiting or not outbound.may_dequeue(self.session.connection, self.now_ms), (
                "something waits beside a free slot"
            )

    def _check_drop(self, receipt: Receipt) -> None:
        """A message that a full queue gave up ranks below all that wait and were there at the time: those that are older."""
        if receipt.outcome is not Outcome.MAXLEN or self.settings.overflow is Overflow.REJECT:
            return
        if receipt.message_id not in self.granted:
            return  # came and went in one activation with other events
        dropped = self._rank(receipt.message_id)
        for delivery in self.session.outbound.queue:
            name = delivery.message.message_id
            if delivery.first_sent_ms is None and name < receipt.message_id and name in self.granted.keys() - self.due_ms.keys():
                assert self._rank(name) > dropped, "a message of a lower rank was kept"

    def _rank(self, name: str) -> tuple[bool, int]:
        return (self.granted[name] > 0, self.submitted[name].priority)

    def _check(self, commands: tuple[Command, ...], events: list[Event]) -> None:
        replayed = 0
        passed: dict[int, int] = {}  # priority → number of the last QoS 0 message sent since a slot could have become free
        for command in commands:
            self._check_order(command)
            match command:
                case SendPublish():
                    self._check_publish(command)
                    name = command.payload.decode()
                    number, priority = int(name[1:]), self.submitted[name].priority
                    if not self._keeps_order(name):
                        pass
                    elif command.qos == QoS.AT_MOST_ONCE:
                        passed[priority] = max(number, passed.get(priority, 0))
                    elif not command.dup:
                        assert number > passed.get(priority, 0), "QoS 0 has passed a message that had a slot"
                    if command.dup:
                        assert self.began[command.packet_id] > replayed, "a replay out of order"
                        replayed = self.began[command.packet_id]
                case SendPubRel():
                    self.received.add(command.packet_id)
                case RecordTransition(transition=Transition.ACCEPTED, message_id=str(name)) if name in self.receipts:
                    assert self.receipts.pop(name) in (Outcome.OFFLINE, Outcome.MAXLEN), "accepted again after it had been taken"
                    assert name not in self.queued, "accepted again after it had waited"
                    self.granted.pop(name, None)
                case RecordTransition(transition=Transition.QUEUED, message_id=str(name)):
                    self.queued.add(name)
                case RecordTransition(transition=Transition.FINISHED, outcome=outcome) if outcome not in FREES_NO_SLOT:
                    passed.clear()
                case RecordTransition(transition=Transition.REFUSED | Transition.CONNECTED):
                    passed.clear()
                case RecordTransition(transition=Transition.SESSION_ENDED):
                    unread = (event for event in (*events, *self.log) if isinstance(event, PublishReceived))
                    self.outlived.update(event.payload for event in unread)
                    if self.gateway is not None and self.gateway.open:  # it has lost its lease, and its device can still repeat
                        self.outlived.update(publication.content for publication in self.device.publications.values())
                case SendReceipt(receipt=receipt):
                    assert receipt.message_id not in self.receipts, "two receipts"
                    self.receipts[receipt.message_id] = receipt.outcome
                    self._check_drop(receipt)
                    for packet_id in [p for p, name in self.exchanges.items() if name == receipt.message_id]:
                        del self.exchanges[packet_id]
                        self.received.discard(packet_id)
                case AcceptConnection(session_present=True):
                    replayed = 0
                case AcceptConnection():
                    # Even if this CONNACK never arrives: MQTT has no way to tell such a client, at its next CONNECT, that the
                    # session it finds is not the one it knew. "Exactly once" holds for as long as the session lives.
                    self.device.forget()
                case ForwardPublication():
                    self.uplink[command.payload] += 1
                case _:
                    pass
            if isinstance(
                command, AcceptConnection | SendPublish | SendPubRel | DropAwaitingRel | WithdrawPublish | CloseConnection
            ):
                self.gateways[command.connection_id].apply(command)
        # A PUBREC whose PUBREL the gateway has sent leaves no command: read the phases from the session.
        if any(isinstance(event, PubRecReceived) for event in events):
            self.received.update(e.packet_id for e in self.session.outbound.window if e.phase.name == "AWAITING_PUBCOMP")
        # A refused message leaves its exchange without a receipt.
        in_use = {entry.packet_id: entry.delivery.message.message_id for entry in self.session.outbound.window}
        self.exchanges = in_use
        self.received &= in_use.keys()

    def _check_order(self, command: Command) -> None:
        match command:
            case AcceptConnection():
                assert command.connection_id > self.newest_accepted, "an older connection was accepted"
                self.newest_accepted = command.connection_id
            case CloseConnection(newest_connection_id=newest) if newest:
                assert newest == self.newest_accepted >= command.connection_id
                self.ids[kind_of(command.connection_id)].rise_above(newest)
            case _:
                pass

    def _check_publish(self, publish: SendPublish) -> None:
        name = publish.payload.decode()
        assert self.granted.setdefault(name, publish.qos) == publish.qos, "another QoS than when it came"
        if publish.qos == QoS.AT_MOST_ONCE:
            assert publish.packet_id == 0
            assert not publish.dup
        else:
            assert 1 <= publish.packet_id <= 32_767
            assert publish.packet_id not in self.received, "PUBLISH after PUBREC"
            if publish.dup:
                assert self.exchanges[publish.packet_id] == name, "a repetition under another id"
            else:
                assert self.exchanges.get(publish.packet_id) != name, "a repetition without DUP"
                self.exchanges[publish.packet_id] = name
                self.numbers += 1
                self.began[publish.packet_id] = self.numbers
        if not publish.dup:
            self._check_rate()
        assert self.now_ms >= self.due_ms.get(name, 0), "too early"
        assert self.receipts.get(name) not in UNSENT, "it has left the session"
        if name not in self.ever_sent:
            assert not publish.dup
            self.ever_sent.add(name)
            if not self._keeps_order(name):
                self._check_key(publish, name)
                return
            sent = self.first_sent[publish.qos == QoS.AT_MOST_ONCE, self.submitted[name].priority]
            number = int(name[1:])
            assert not sent or sent[-1] < number, "first transmissions out of order"
            sent.append(number)

    def _keeps_order(self, name: str) -> bool:
        """Returns False if the message may be sent out of the order of submission."""
        return name not in self.keys and name not in self.due_ms

    def _check_key(self, publish: SendPublish, name: str) -> None:
        """Holds for one QoS and priority. A message with another one does not wait for those before it."""
        if name in self.due_ms:
            return
        key, number = (self.keys[name], publish.qos == QoS.AT_MOST_ONCE, self.submitted[name].priority), int(name[1:])
        assert self.newest_of_key.get(key, 0) < number, "after a newer one with the same collapse key"
        self.newest_of_key[key] = number

    def _check_rate(self) -> None:
        rate, sent = self.settings.max_send_rate, self.sent_at_ms
        sent.append(self.now_ms)
        if rate:
            for count, at_ms in enumerate(reversed(sent), start=1):
                assert count * 1_000 <= rate * (self.now_ms - at_ms + 1_000), "more than max_send_rate"
            del sent[: -2 * rate]

    # --- what holds after every step ----------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "session"):
            return
        outbound = self.session.outbound
        held = [entry.delivery.message.message_id for entry in outbound.window]
        held += [delivery.message.message_id for delivery in outbound.queue]
        held += [message.message_id for message in outbound.scheduled]
        assert len(held) == len(set(held)), "a message is held twice"
        assert not self.receipts.keys() & set(held), "a message has left and is still held"
        assert self.receipts.keys() | set(held) == self.taken, "a message has disappeared"

    @invariant()
    def nothing_is_delivered_twice_at_qos_2(self) -> None:
        if not hasattr(self, "session"):
            return
        for name, message in self.submitted.items():
            if message.qos == QoS.EXACTLY_ONCE == self.granted.get(name, message.qos):
                times = self.device.seen[message.payload]
                assert times <= 1
                assert times == 1 or self.receipts.get(name) is not Outcome.DELIVERED
        for content in self.logged:
            assert self.uplink[content] <= 1 or content in self.outlived
            assert self.log or self.uplink[content] >= 1, "a publication is lost"

    def teardown(self) -> None:
        """A good device on a good network empties the session."""
        if not hasattr(self, "session"):
            return
        self.connect(version=4, clean_start=False, expiry_s=3_600, receive_maximum=65_535)
        for _ in range(10_000):
            self._activate([self.log.popleft() for _ in range(len(self.log))])
            while self.gateway.wire:
                self._device_reads(self.gateway.wire.popleft())
            self.nothing_is_lost()
            self.nothing_is_delivered_twice_at_qos_2()
            if not self.gateway.open:  # its id was below the newest, or it was closed for a stalled message
                self.connect(version=4, clean_start=False, expiry_s=3_600, receive_maximum=65_535)
            if not self.log:
                outbound = self.session.outbound
                if not outbound.window and not outbound.queue and not outbound.scheduled:
                    break
                deadline_ms = self.session.next_deadline_ms()
                assert deadline_ms is not None, "something is held and nothing will ever happen"
                self.now_ms = max(self.now_ms, deadline_ms)
        assert self.receipts.keys() == self.taken
        assert not self.device.publications


TestSessionModel: Any = pytest.mark.promise(
    "to-device-qos-0",
    "to-device-qos-1",
    "to-device-qos-2",
    "from-device-qos-2",
    "given-up-message",
    "no-publish-after-pubrel",
    "queue-order",
    "gateway-clocks",
)(SessionModel.TestCase)
