"""One device behind a broker: the window, QoS 2 in one answer, and whatever order things come in."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.bridge.device import DeviceConnection, broker_reason
from sinks.bridge.settings import Acknowledgement
from state.commands import AcceptConnection, CloseConnection, SendPublish, SendPubRel, WithdrawPublish
from state.events import GatewayEvent, PubAckReceived, PubCompReceived, PubRecReceived
from state.model import QoS


@dataclass
class Device:
    """A connection, and what it has said."""

    quota: int = 8
    mode: Acknowledgement = Acknowledgement.DEVICE
    published: list[SendPublish] = field(default_factory=list)
    events: list[GatewayEvent] = field(default_factory=list)
    sequence: int = 0

    def __post_init__(self) -> None:
        self.connection = DeviceConnection("d", connection_id=1, partition=0, acknowledgement=self.mode)
        self.apply(AcceptConnection, send_quota=self.quota)

    def apply(self, kind: type, *, code: str = "", **fields: object) -> None:
        self.sequence += 1
        self.connection.apply(kind(connection_id=1, partition=0, sequence=self.sequence, **fields), code)
        self._take()

    def send(self, packet_id: int, *, qos: int = 1, dup: bool = False, message_id: str = "") -> None:
        name = message_id or f"m{packet_id}"
        self.apply(SendPublish, packet_id=packet_id, topic="t", payload=b"", qos=QoS(qos), dup=dup, message_id=name)

    def answer(self, message_id: str, reason_code: int = 0) -> bool:
        known = self.connection.device_answered(message_id, reason_code)
        self._take()
        return known

    def broker_takes(self, index: int = -1, reason_code: int = 0) -> None:
        self.connection.broker_answered(self.published[index], reason_code)
        self._take()

    def _take(self) -> None:
        self.published += self.connection.pop_publications()
        self.events += self.connection.pop_events()

    @property
    def sent(self) -> list[int]:
        return [command.packet_id for command in self.published]


def test_commands_that_come_again_from_other_code_end_the_connection() -> None:
    device = Device()
    for code, expected in (("a", False), ("b", True)):
        device.sequence = 1
        device.apply(SendPublish, code=code, packet_id=1, topic="t", payload=b"", qos=QoS(1), message_id="m1")
        assert device.connection.has_build_mismatch is expected
    assert device.sent == [1]
    assert device.connection.repeated_commands == 1


def test_messages_beyond_the_window_wait_for_an_answer() -> None:
    device = Device(quota=2)
    for packet_id in (1, 2, 3):
        device.send(packet_id)
    assert device.sent == [1, 2]
    device.answer("m2")
    assert device.sent == [1, 2, 3]
    assert device.connection.unacknowledged == 2


def test_an_answer_to_a_message_that_is_still_held_back_ends_it_unsent() -> None:
    device = Device(quota=1)
    device.send(1)
    device.send(2, qos=2)  # replayed: the device has it from before
    assert device.answer("m2")
    device.answer("m1")
    assert device.sent == [1]
    assert [type(event) for event in device.events] == [PubRecReceived, PubCompReceived, PubAckReceived]


def test_a_refused_message_under_another_packet_id_is_a_new_exchange() -> None:
    device = Device()
    device.send(1)
    device.answer("m1", 0x97)
    device.send(2, message_id="m1")
    device.answer("m1")
    assert device.events == [
        PubAckReceived(connection_id=1, packet_id=1, reason_code=0x97),
        PubAckReceived(connection_id=1, packet_id=2),
    ]


def test_the_broker_may_confirm_a_copy_after_the_exchange() -> None:
    device = Device(mode=Acknowledgement.BROKER)
    device.send(1)
    device.broker_takes()
    device.broker_takes()
    device.send(1, message_id="another")
    device.connection.broker_answered(device.published[0], 0)
    assert [event.packet_id for event in device.events if isinstance(event, PubAckReceived)] == [1]


def test_what_the_session_withdraws_is_not_sent_and_not_answered_for() -> None:
    device = Device(quota=1)
    device.send(1)
    device.send(2)
    device.apply(WithdrawPublish, packet_ids=(1, 2))
    device.send(3)
    assert device.sent == [1, 3]
    assert not device.answer("m1")
    assert device.events == []


@pytest.mark.promise("no-publish-after-pubrel")
def test_a_message_that_waits_is_dropped_when_the_session_releases_its_id() -> None:
    device = Device(quota=1)
    device.send(1)
    device.send(2, qos=2, dup=True)
    device.send(3)
    device.apply(SendPubRel, packet_id=2)
    assert device.events == [PubCompReceived(connection_id=1, packet_id=2)]
    assert not device.answer("m2"), "the session has its answer"
    assert device.connection.resends_dropped == 1
    device.answer("m1")
    assert device.sent == [1, 3]


def test_a_pubrel_frees_the_slot_of_what_the_broker_has() -> None:
    device = Device(quota=1)
    device.send(1, qos=2)
    device.send(2)
    device.apply(SendPubRel, packet_id=1)
    assert device.sent == [1, 2]
    assert not device.answer("m1")


def test_after_the_engine_has_closed_it_nothing_goes_out() -> None:
    device = Device()
    device.apply(CloseConnection, reason_code=0x8E)
    device.send(1)
    assert (device.connection.closed_for, device.sent) == (0x8E, [])


def test_the_device_cannot_answer_in_broker_mode() -> None:
    device = Device(mode=Acknowledgement.BROKER)
    device.send(1)
    assert not device.answer("m1")


def test_a_pubcomp_with_not_found_is_a_refusal_that_paho_hides() -> None:
    device = Device()
    device.send(1, qos=2)
    device.send(2)
    assert broker_reason(device.published[0], 0x92) == 0x97
    assert broker_reason(device.published[1], 0x92) == 0x92


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 6), st.integers(1, 2)),
        st.tuples(st.just("resend"), st.integers(1, 6), st.just(0)),
        st.tuples(st.just("answer"), st.integers(1, 6), st.sampled_from([0, 0x10, 0x80, 0x97])),
        st.tuples(st.just("broker"), st.integers(0, 5), st.sampled_from([0, 0x97])),
        st.tuples(st.just("pubrel"), st.integers(1, 6), st.just(0)),
        st.tuples(st.just("withdraw"), st.integers(1, 6), st.just(0)),
    ),
    max_size=60,
)


@given(steps=steps, quota=st.integers(1, 3), mode=st.sampled_from(Acknowledgement))
def test_the_window_holds_and_no_exchange_is_answered_twice(
    steps: list[tuple[str, int, int]], quota: int, mode: Acknowledgement
) -> None:
    device = Device(quota=quota, mode=mode)
    open_exchanges: dict[int, int] = {}
    for kind, number, detail in steps:
        before = len(device.events)
        match kind:
            case "send" if number not in open_exchanges:
                open_exchanges[number] = detail
                device.send(number, qos=detail)
            case "resend" if number in open_exchanges:
                device.send(number, qos=open_exchanges[number], dup=True)
            case "answer":
                device.answer(f"m{number}", detail)
            case "broker" if number < len(device.published):
                device.broker_takes(number, detail)
            case "pubrel" if number not in open_exchanges:
                device.apply(SendPubRel, packet_id=number)
                assert device.events[before:] == [PubCompReceived(connection_id=1, packet_id=number)]
                continue
            case "withdraw":
                device.apply(WithdrawPublish, packet_ids=(number,))
                open_exchanges.pop(number, None)
        assert device.connection.unacknowledged <= quota
        for event in device.events[before:]:
            if isinstance(event, PubAckReceived | PubRecReceived):
                assert open_exchanges.pop(event.packet_id, None) is not None
