"""With routing, a device is answered when every record of its packet is in the log, in whatever order Kafka confirms them.

Rules, for any packets and any order of confirmations:
1. An answer goes out after the last record of its packet, and answers have the order of the packets.
2. What comes behind a SUBSCRIBE or UNSUBSCRIBE, but for further ones, is appended when Kafka has a list with it. At most one
   list is unconfirmed.
3. The events for the session are numbered. A list has the number of its newest change, and the last one has all subscriptions.
4. A retained publication is handed on, and the session hears of it at QoS 2, behind the record that retains it. What is handed on
   at QoS 0 and 1 has the order of the packets.
"""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from sinks.mqtt.connection.append_queue import Append, AppendTopic
from sinks.routing.settings import RoutingSettings
from state.events import PublishReceived, Subscribed, Unsubscribed
from state.records.events import decode_events
from state.records.subscriptions import decode_subscriptions
from tests.unit.sinks.mqtt.connection.harness import Harness, connected
from tests.unit.sinks.mqtt.mqtt_bytes import packet, publish, text

FILTERS = ("a", "b/+", "$share/g/a")
ANSWERS = {0x82: 0x90, 0xA2: 0xB0, 1: 0x40, 2: 0x50}


def subscribe(packet_id: int, topic_filter: str, qos: int) -> bytes:
    return packet(0x82, packet_id.to_bytes(2), text(topic_filter) + bytes((qos,)))


def unsubscribe(packet_id: int, topic_filter: str, _: int) -> bytes:
    return packet(0xA2, packet_id.to_bytes(2), text(topic_filter))


def published(packet_id: int, topic_filter: str, qos: int) -> bytes:
    """The packet id is the payload, so that records tell of which packet they are. A shared filter stands for RETAIN."""
    first_byte = 0x30 | qos << 1 | topic_filter.startswith("$")
    return publish("t", packet_id.to_bytes(2), first_byte=first_byte, packet_id=packet_id if qos else None)


class Run:
    """Sends packets, and checks rules 1, 2 and 4 while Kafka confirms records in the order that `order` draws."""

    def __init__(self, changes: list[int]) -> None:
        self.changes = changes
        """The packets that make a list, in the order of the lists."""
        self.harness: Harness = connected(
            4, routing=RoutingSettings(enabled=True), accept={"subscriptions": (), "topic_filters": (), "max_awaiting_rel": 50}
        )
        self.harness.confirming = False
        self.confirmed: list[Append] = []
        self.seen: list[Append] = []
        self.output = b""

    def note(self) -> None:
        for append in self.harness.waiting:
            if append not in self.seen:
                kept = [other for other in self.seen if other.topic is AppendTopic.RETAINED]
                unconfirmed = [int.from_bytes(other.value) for other in kept if other not in self.confirmed]
                if is_list(append):
                    assert all(other in self.confirmed for other in self.seen if is_list(other)), "rule 2: one list"
                elif ids := ids_of(append, self.changes) if not versions_of(append) else []:
                    versions = {version for other in self.seen for version in versions_of(other)}
                    newest = max((version for version in versions if self.changes[version - 1] < ids[0]), default=0)
                    assert newest <= self.confirmed_version, "rule 2"
                    assert append in kept or ids[0] not in unconfirmed, "rule 4"
                    if append.topic is AppendTopic.UPLINK:
                        handed_on = [int.from_bytes(other.value) for other in self.seen if other.topic is AppendTopic.UPLINK]
                        assert all(packet_id < ids[0] for packet_id in handed_on), "rule 4: the order"
                self.seen.append(append)
                if any(isinstance(event, PublishReceived) and event.retain for event in events_of(append)):
                    assert [other.value for other in kept].count(payload_of(append)) == 1, "rule 4"

    @property
    def confirmed_version(self) -> int:
        """Returns the number of the newest list that Kafka has confirmed."""
        return max((decode_subscriptions(append.value).version for append in self.confirmed if is_list(append)), default=0)

    def confirm(self, index: int) -> None:
        waiting = self.harness.waiting
        append = waiting[index % len(waiting)]
        self.confirmed.append(append)
        self.harness.confirm(append)
        self.output += self.harness.output()
        self.note()


def is_list(append: Append) -> bool:
    return append.topic is AppendTopic.SUBSCRIPTIONS


def versions_of(append: Append) -> list[int]:
    """Returns the numbers of the changes in a record of events."""
    return [event.version for event in events_of(append) if isinstance(event, Subscribed | Unsubscribed)]


def events_of(append: Append) -> list[object]:
    return list(decode_events(append.value)) if append.topic is AppendTopic.EVENTS else []


def payload_of(append: Append) -> bytes:
    [event] = events_of(append)
    assert isinstance(event, PublishReceived)
    return event.payload


def answered_ids(output: bytes) -> list[int]:
    found = []
    while output:
        found.append(int.from_bytes(output[2:4]))
        output = output[2 + output[1] :]
    return found


Packet = tuple[Callable[[int, str, int], bytes], str, int]
PACKETS = st.lists(
    st.tuples(st.sampled_from((subscribe, unsubscribe, published)), st.sampled_from(FILTERS), st.integers(0, 2)), max_size=8
)


@given(packets=PACKETS, order=st.lists(st.integers(0, 7), max_size=40), together=st.booleans())
def test_answers_follow_all_records_of_their_packet(packets: list[Packet], order: list[int], together: bool) -> None:
    changes = packets_with_a_list(packets)
    run = Run(changes)
    harness, expected = run.harness, []
    sent = []
    for packet_id, (make, topic_filter, qos) in enumerate(packets, start=1):
        sent.append(make(packet_id, topic_filter, qos))
        if make is not published or qos:
            expected.append(packet_id)
    choices = iter(order)
    for data in [b"".join(sent)] if together else sent:
        harness.feed("receive", data)
        run.output += harness.output()
        run.note()
        if not together and harness.waiting:
            run.confirm(next(choices, 0))
    while harness.waiting:
        answered = answered_ids(run.output)
        assert answered == expected[: len(answered)], "rule 1: the order"
        missing = {packet_id for append in harness.waiting for packet_id in ids_of(append, changes)}
        missing |= set(changes[run.confirmed_version :])
        assert not missing.intersection(answered), "rule 1: every record"
        run.confirm(next(choices, 0))
    assert answered_ids(run.output) == expected
    check_lists(run.seen, packets)


def packets_with_a_list(packets: list[Packet]) -> list[int]:
    """Returns the packets that make a list, in the order of the lists."""
    held: dict[str, int] = {}
    found = []
    for packet_id, (make, topic_filter, qos) in enumerate(packets, start=1):
        if make is subscribe:
            wants_retained = not topic_filter.startswith("$share/")
            if wants_retained or held.get(topic_filter) != qos:
                found.append(packet_id)
            held[topic_filter] = qos
        elif make is unsubscribe and (held.pop(topic_filter, None) is not None or not found):
            found.append(packet_id)  # the first of a connection makes one in any case
    return found


def ids_of(append: Append, changes: list[int]) -> list[int]:
    """Returns the packets that a record is of."""
    if is_list(append):
        return []  # `Run.confirmed_version` tells what waits for lists
    if append.topic is not AppendTopic.EVENTS:
        return [int.from_bytes(append.value)]
    return [
        int.from_bytes(event.payload) if isinstance(event, PublishReceived) else changes[event.version - 1]
        for event in events_of(append)
        if isinstance(event, PublishReceived | Subscribed | Unsubscribed)
    ]


def check_lists(records: list[Append], packets: list[Packet]) -> None:
    """Checks rule 3."""
    lists = [decode_subscriptions(append.value) for append in records if is_list(append)]
    versions = [version for append in records for version in versions_of(append)]
    assert versions == list(range(1, len(versions) + 1))
    assert [listed.version for listed in lists] == sorted({listed.version for listed in lists})
    assert [listed.version for listed in lists[-1:]] == versions[-1:]
    held: dict[str, int] = {}
    for make, topic_filter, qos in packets:
        if make is subscribe:
            held[topic_filter] = qos
        elif make is unsubscribe:
            held.pop(topic_filter, None)
    newest = {one.topic_filter: int(one.qos) for one in lists[-1].subscriptions} if lists else {}
    assert newest == held
