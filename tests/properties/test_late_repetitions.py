"""A task of Spark that was believed dead writes its records again, after newer ones: the repetition must have no effect.

The session is the real one, and so is what applies its commands: a gateway's connection, and a bridge's. Each scenario runs
twice, once with repetitions of whole micro-batches and once without. The device, the log and the session must see the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.bridge.device import DeviceConnection
from sinks.bridge.settings import Acknowledgement
from state.commands import Command, CommandBatch, GatewayCommand
from state.events import ClientConnected, ConnectionLost, Event, MessageSubmitted
from state.model import Message, QoS
from state.records.commands import decode_command_batch, encode_command_batch
from state.session import Session
from state.session_codec import encode_session
from state.settings import SessionSettings
from tests.unit.sinks.mqtt.connection.harness import Harness, ack
from tests.unit.sinks.mqtt.mqtt_bytes import connect, text

RESEND_MS = 30_000


class Process(Protocol):
    """A gateway or a bridge with one device."""

    def carry_out(self, command: GatewayCommand, code: str) -> None: ...

    def events(self) -> list[Event]:
        """Returns the events for the session since the last call."""

    def answer(self, index: int) -> None:
        """Lets the device answer one of its unanswered packets."""

    def seen(self) -> object:
        """Returns everything that the device has received."""


class Gateway:
    def __init__(self) -> None:
        self.harness = Harness()
        self.harness.send(connect(keep_alive_s=0, payload=text("d")))
        self.taken = 0
        self.wire = b""
        self.unanswered: list[bytes] = []

    def carry_out(self, command: GatewayCommand, code: str) -> None:
        self.harness.feed("apply", (command,), code)
        self._written(self.harness.settle())

    def events(self) -> list[Event]:
        new = self.harness.events[self.taken :]
        self.taken = len(self.harness.events)
        return list(new)

    def answer(self, index: int) -> None:
        if self.unanswered:
            self._written(self.harness.send(self.unanswered.pop(index % len(self.unanswered))))

    def seen(self) -> object:
        return self.wire

    def _written(self, output: bytes) -> None:
        self.wire += output
        while output:
            assert output[1] < 0x80, "packets of this test are short"
            packet, output = output[: output[1] + 2], output[output[1] + 2 :]
            if packet[0] >> 4 == 3 and packet[0] & 6:
                start = 4 + int.from_bytes(packet[2:4])
                answer = 0x40 if packet[0] & 2 else 0x50
                self.unanswered.append(ack(answer, int.from_bytes(packet[start : start + 2])))
            elif packet[0] >> 4 == 6:
                self.unanswered.append(ack(0x70, int.from_bytes(packet[2:4])))


class Bridge:
    def __init__(self) -> None:
        self.device = DeviceConnection("d", connection_id=77, partition=3, acknowledgement=Acknowledgement.DEVICE)
        self.published: list[tuple[int, str, bytes, bool]] = []
        self.unanswered: list[str] = []
        self.heard: list[Event] = [ClientConnected(connection_id=77, commands_partition=3, clean_start=False)]

    def carry_out(self, command: GatewayCommand, code: str) -> None:
        self.device.apply(command, code)
        self._take()

    def events(self) -> list[Event]:
        heard, self.heard = self.heard, []
        return heard

    def answer(self, index: int) -> None:
        if self.unanswered:
            self.device.device_answered(self.unanswered.pop(index % len(self.unanswered)), 0)
            self._take()

    def seen(self) -> object:
        return self.published

    def _take(self) -> None:
        for command in self.device.pop_publications():
            self.published.append((command.packet_id, command.message_id, command.payload, command.dup))
            if command.qos:
                self.unanswered.append(command.message_id)
        self.heard += self.device.pop_events()


@dataclass
class Story:
    process: Process
    session: Session = field(default_factory=lambda: Session(client_id="d", settings=SessionSettings(max_inflight=4)))
    now_ms: int = 1_000_000
    batches: list[bytes] = field(default_factory=list)
    said: list[Command] = field(default_factory=list)
    told: list[Event] = field(default_factory=list)
    messages: int = 0

    def micro_batch(self, *new: Event) -> None:
        events = self.process.events()
        self.told += events
        commands = self.session.handle_all([*events, *new], now_ms=self.now_ms)
        self.said += commands
        told = tuple(item for item in commands if isinstance(item, GatewayCommand))
        batch = CommandBatch(client_id="d", commands=told, code="c0de")
        self.batches.append(encode_command_batch(batch))
        self.deliver(self.batches[-1])

    def deliver(self, batch: bytes) -> None:
        decoded = decode_command_batch(batch)
        for command in decoded.commands:
            self.process.carry_out(command, decoded.code)

    def submit(self, qos: int) -> None:
        self.messages += 1
        name = f"m{self.messages}"
        self.micro_batch(MessageSubmitted(message=Message(message_id=name, topic="t", payload=name.encode(), qos=QoS(qos))))


Step = tuple[str, int]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 2)),
        st.tuples(st.just("answer"), st.integers(0, 3)),
        st.tuples(st.just("time"), st.just(RESEND_MS)),
        st.tuples(st.just("again"), st.integers(0, 30)),
    ),
    max_size=30,
)


def tell(process: Process, script: list[Step], *, with_repetitions: bool) -> Story:
    story = Story(process)
    story.micro_batch()
    for what, value in script:
        match what:
            case "submit":
                story.submit(value)
            case "answer":
                process.answer(value)
                story.micro_batch()
            case "time":
                story.now_ms += value
                story.micro_batch()
            case _ if with_repetitions:
                story.deliver(story.batches[value % len(story.batches)])
    for batch in list(story.batches) if with_repetitions else ():
        story.deliver(batch)
    story.micro_batch()
    return story


@pytest.mark.parametrize("process", [Gateway, Bridge])
@given(script=steps)
@pytest.mark.promise("late-repetition")
def test_a_micro_batch_that_is_written_again_later_changes_nothing(process: Callable[[], Process], script: list[Step]) -> None:
    plain = tell(process(), script, with_repetitions=False)
    repeated = tell(process(), script, with_repetitions=True)
    assert repeated.process.seen() == plain.process.seen()
    assert repeated.told == plain.told
    assert repeated.said == plain.said
    assert encode_session(repeated.session) == encode_session(plain.session)


def test_the_script_says_something() -> None:
    script: list[Step] = [("submit", 1), ("submit", 2), ("answer", 0), ("answer", 0), ("answer", 0), ("submit", 0)]
    for process in Gateway(), Bridge():
        story = tell(process, script, with_repetitions=True)
        assert len(story.told) > 3
    assert story.process.seen() == [(1, "m1", b"m1", False), (2, "m2", b"m2", False), (0, "m3", b"m3", False)]


def test_a_late_command_for_an_ended_connection_ends_nothing_else() -> None:
    """The process that reads the command reports the connection lost. The session ignores that: the connection has ended."""
    story = Story(Bridge())
    story.micro_batch()
    story.submit(1)
    newer = ClientConnected(connection_id=78, commands_partition=3, clean_start=False)
    story.session.handle_all([newer], now_ms=story.now_ms)
    before = encode_session(story.session)
    assert story.session.handle_all([ConnectionLost(connection_id=77, reason="late")], now_ms=story.now_ms) == ()
    assert encode_session(story.session) == before
