"""protocol.md, section 2: far more sends than there are packet ids, while some are stuck. EMQX crashes here, TBMQ loses."""

from collections import Counter

import pytest

from state.commands import SendPublish, SendPubRel, SendReceipt
from state.events import ClientConnected, ConnectionLost, Event, MessageSubmitted, PubAckReceived, PubCompReceived, PubRecReceived
from state.model import Outcome
from state.session import Session
from state.settings import SessionSettings
from tests.scenarios.scenario import CLIENT, message

pytestmark = [pytest.mark.long, pytest.mark.no_cover]  # no line of its own, and a tracer doubles its time

FIRST_ID = 32_000
SENDS = 34_000
"""A session has 32,767 packet ids of its own, so this is once round and twice over the end."""

BATCH = 500


class FastDevice:
    """Acknowledges everything at once but the first `stuck` messages, in activations of BATCH events."""

    def __init__(self, *, qos: int, stuck: int) -> None:
        self.qos = qos
        self.session = Session(client_id=CLIENT, settings=SessionSettings(max_inflight=stuck + BATCH, retry_interval_ms=10**9))
        self.stuck_ids: list[int] = []
        self.seen: Counter[bytes] = Counter()
        self.receipts: Counter[str] = Counter()
        self.outcomes: Counter[Outcome] = Counter()
        self.highest = 0
        self._run([ClientConnected(connection_id=1, commands_partition=0, clean_start=True, session_expiry_interval_s=3_600)])
        self._run([MessageSubmitted(message=message(f"stuck-{n}", qos=qos)) for n in range(stuck)], stuck=True)

    def send(self, count: int) -> None:
        for start in range(0, count, BATCH):
            answers: list[Event] = [
                MessageSubmitted(message=message(f"m{n}", qos=self.qos)) for n in range(start, min(start + BATCH, count))
            ]
            while answers:
                answers = self._run(answers)

    def _run(self, events: list[Event], *, stuck: bool = False) -> list[Event]:
        answers: list[Event] = []
        for command in self.session.handle_all(events, now_ms=1_000):
            match command:
                case SendPublish(packet_id=packet_id, payload=payload):
                    self.seen[payload] += 1
                    self.highest = max(self.highest, packet_id)
                    if stuck:
                        self.stuck_ids.append(packet_id)
                    elif self.qos == 1:
                        answers.append(PubAckReceived(connection_id=1, packet_id=packet_id))
                    else:
                        answers.append(PubRecReceived(connection_id=1, packet_id=packet_id))
                case SendPubRel(packet_id=packet_id):
                    answers.append(PubCompReceived(connection_id=1, packet_id=packet_id))
                case SendReceipt(receipt=receipt):
                    self.receipts[receipt.message_id] += 1
                    self.outcomes[receipt.outcome] += 1
                case _:
                    pass
        return answers

    def replay(self) -> list[str]:
        self.session.handle(ConnectionLost(connection_id=1), now_ms=2_000)
        connect = ClientConnected(connection_id=2, commands_partition=0, clean_start=False, session_expiry_interval_s=3_600)
        commands = self.session.handle(connect, now_ms=2_000)
        return [f"{c.packet_id} {c.payload.decode()}" for c in commands if isinstance(c, SendPublish)]


@pytest.mark.parametrize(("qos", "stuck"), [(1, 1), (2, 100)])
def test_ids_that_go_round_stuck_ones_lose_and_double_nothing(qos: int, stuck: int) -> None:
    """[MQTT-2.2.1-4] [MQTT-4.6.0-1]"""
    device = FastDevice(qos=qos, stuck=stuck)
    device.session.outbound.packet_ids.last = FIRST_ID
    device.send(SENDS)

    assert len(device.seen) == SENDS + stuck
    assert set(device.seen.values()) == {1}
    assert len(device.receipts) == SENDS
    assert device.outcomes == {Outcome.DELIVERED: SENDS}
    assert device.highest == 32_767
    window = [entry.packet_id for entry in device.session.outbound.window]
    assert window == device.stuck_ids == list(range(1, stuck + 1))

    # What is sent now gets ids that lie between and before others, and still comes after the stuck ones.
    device.session.outbound.packet_ids.last = 32_766
    late = [MessageSubmitted(message=message(name, qos=qos)) for name in ("late-1", "late-2", "late-3")]
    device.session.handle_all(late, now_ms=1_500)
    assert device.replay() == [
        *(f"{n + 1} stuck-{n}" for n in range(stuck)),
        "32767 late-1",
        f"{stuck + 1} late-2",
        f"{stuck + 2} late-3",
    ]
