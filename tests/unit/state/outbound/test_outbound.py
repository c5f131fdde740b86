from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from state.commands import ClearThrottle, Command, SetThrottle
from state.events import ClientConnected, DeadlineReached, Event, MessageSubmitted, PubAckReceived
from state.model import Message, QoS
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import Overflow, SessionSettings


class Client:
    """A session that is stored and read again after every activation, and the throttle as a backend sees it."""

    def __init__(self, **settings: Any) -> None:
        self.settings = SessionSettings(**{"prefetch": 0, "max_backlog_bytes": 0} | settings)
        self.session = Session(client_id="client", settings=self.settings)
        self.now_ms = 1_000
        self.throttle: SetThrottle | None = None
        self.records = 0
        self.sent = 0

    def handle(self, *events: Event) -> tuple[Command, ...]:
        session = decode_session(encode_session(self.session), client_id="client", settings=self.settings)
        commands = session.handle_all(events, now_ms=self.now_ms)
        self.session = session
        for command in commands:
            if isinstance(command, SetThrottle | ClearThrottle):
                self.records += 1
                self.throttle = command if isinstance(command, SetThrottle) else None
        return commands

    def submit(self, count: int, *, payload: bytes = b"x", expires_at_ms: int | None = None) -> None:
        messages = []
        for _ in range(count):
            self.sent += 1
            messages.append(
                Message(message_id=f"m{self.sent}", topic="t", payload=payload, qos=QoS(1), expires_at_ms=expires_at_ms)
            )
        self.handle(*(MessageSubmitted(message=message) for message in messages))

    def connect(self) -> None:
        self.handle(ClientConnected(connection_id=1, commands_partition=0, protocol_version=4, clean_start=False))

    def acknowledge(self, count: int) -> None:
        for _ in range(count):
            packet_id = next(iter(self.session.outbound.window)).packet_id
            self.handle(PubAckReceived(connection_id=1, packet_id=packet_id))

    @property
    def queued(self) -> int:
        return len(self.session.outbound.queue)


def test_a_queue_at_its_high_watermark_throttles_and_says_how_long_it_is() -> None:
    client = Client(max_mqueue_len=10)
    client.submit(7)
    assert client.throttle is None
    client.submit(1)
    assert client.throttle == SetThrottle(since_ms=1_000, reason="8 messages (16 bytes) wait for the client")


def test_a_client_stays_throttled_down_to_the_low_watermark() -> None:
    client = Client(max_mqueue_len=10, max_inflight=1)
    client.submit(8)
    client.connect()
    assert client.queued == 7
    client.acknowledge(1)
    assert client.queued == 6
    assert client.throttle is not None
    client.acknowledge(1)
    assert client.queued == 5
    assert client.throttle is None
    client.submit(2)
    assert client.throttle is None, "between the marks nothing changes"
    assert client.records == 2


def test_bytes_count_like_messages() -> None:
    client = Client(max_mqueue_len=1_000, max_mqueue_bytes=100)
    client.submit(1, payload=b"x" * 78)
    assert client.throttle is None
    client.submit(1)
    assert client.throttle is not None


def test_messages_that_expire_free_the_client_without_traffic() -> None:
    client = Client(max_mqueue_len=10)
    client.submit(10, expires_at_ms=5_000)
    assert client.throttle is not None
    client.now_ms = 5_000
    client.handle(DeadlineReached())
    assert client.throttle is None


def test_a_session_that_ends_is_not_throttled_any_more() -> None:
    client = Client(max_mqueue_len=10)
    client.submit(10)
    client.handle(ClientConnected(connection_id=1, commands_partition=0, protocol_version=4, clean_start=True))
    assert client.throttle is None
    assert client.queued == 0


def test_a_watermark_of_0_is_off_and_ends_what_it_began() -> None:
    client = Client(max_mqueue_len=10, high_watermark=0.0)
    client.submit(10)
    assert client.throttle is None
    client = Client(max_mqueue_len=10)
    client.submit(10)
    client.settings = SessionSettings(max_mqueue_len=10, high_watermark=0.0)
    client.handle(DeadlineReached())
    assert client.throttle is None


def test_a_queue_without_a_limit_throttles_nobody() -> None:
    client = Client(max_mqueue_len=0, max_mqueue_bytes=0)
    client.submit(500)
    assert client.throttle is None


@given(
    st.lists(st.tuples(st.sampled_from(["submit", "connect", "acknowledge"]), st.integers(1, 12)), max_size=30),
    st.sampled_from(list(Overflow)),
)
def test_a_client_is_throttled_between_its_watermarks_only(steps: list[tuple[str, int]], overflow: Overflow) -> None:
    client = Client(max_mqueue_len=20, max_inflight=2, overflow=overflow)
    for step, count in steps:
        before = client.throttle
        if step == "submit":
            client.submit(count)
        elif step == "connect":
            client.connect()
        else:
            client.acknowledge(min(count, len(client.session.outbound.window)))
        if client.queued >= 16:
            assert client.throttle is not None
        elif client.queued <= 10:
            assert client.throttle is None
        elif step != "acknowledge":
            assert (client.throttle is None) == (before is None)
