"""Measures the cost of one session with a long queue in each micro-batch: decode, activation, encode, and the bytes of its state.

    python -m bench.backlog                     # two minutes; prints a table and writes bench/results/backlog.json
    python -m bench.backlog --megabytes 1,5     # other sizes of the queue

A busy client is connected and acknowledges, with 128 messages in its window. Its queue has the size that is given, counted as
`max_backlog_bytes` counts, in messages of 200 bytes at QoS 1. In each micro-batch the session is decoded, gets 100
acknowledgements and as many new messages, sends what fits into its window, and is encoded, as the engine does with each session
that it calls. There is no Spark and no Kafka, which carry the encoded state between engine and worker besides.
"""

import argparse
import gc
import json
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.devices import PAYLOAD_BYTES
from state.commands import SendPublish
from state.events import ClientConnected, Event, MessageSubmitted, PubAckReceived
from state.model import ClientId, Message, MessageId, Position
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import SessionSettings

RESULTS = Path(__file__).parent / "results" / "backlog.json"
MEGABYTE = 1_000_000
ACKNOWLEDGEMENTS = 100
_WINDOW = 128
_BATCH_MS = 500
_AT_ONCE = 5_000
_CLIENT = ClientId("busy")
_PAYLOAD = bytes(PAYLOAD_BYTES)
_CONNECTION_ID = 1
_WIDTH = 120


class Cost(NamedTuple):
    """The cost of one micro-batch. sent: PUBLISH packets in it."""

    decode_ms: float
    activation_ms: float
    encode_ms: float
    blob_bytes: int
    queued: int
    sent: int

    @property
    def whole_ms(self) -> float:
        return self.decode_ms + self.activation_ms + self.encode_ms


class BusyClient:
    """Plays the client and its backend. blob: the session between two micro-batches."""

    def __init__(self, most_bytes: int) -> None:
        self._settings = SessionSettings(max_inflight=_WINDOW, max_backlog_bytes=most_bytes)
        self._now_ms, self._offset = 0, 0
        self._unacknowledged: list[int] = []
        session = Session(client_id=_CLIENT, settings=self._settings)
        self._activate(session, [ClientConnected(connection_id=_CONNECTION_ID, commands_partition=0, clean_start=False)])
        self.blob = encode_session(session)

    def fill(self, size_bytes: int) -> None:
        """Sends messages until the queue has this size. Raises RuntimeError if it does not get so long."""
        session = decode_session(self.blob, client_id=_CLIENT, settings=self._settings)
        while (left := size_bytes - session.summary().queued_bytes) > 0:
            before = session.summary().queued
            missing = ACKNOWLEDGEMENTS + 1 + left // PAYLOAD_BYTES
            self._activate(session, [*self._acknowledgements(), *self._messages(min(_AT_ONCE, missing))])
            if session.summary().queued <= before:
                raise RuntimeError(f"the queue has no more than {session.summary().queued_bytes:,} bytes")
        self.blob = encode_session(session)

    def micro_batch(self) -> Cost:
        events = [*self._acknowledgements(), *self._messages(ACKNOWLEDGEMENTS)]
        began_s = time.perf_counter()
        session = decode_session(self.blob, client_id=_CLIENT, settings=self._settings)
        decoded_s = time.perf_counter()
        sent = self._activate(session, events)
        activated_s = time.perf_counter()
        self.blob = encode_session(session)
        encoded_s = time.perf_counter()
        return Cost(
            decode_ms=1_000 * (decoded_s - began_s),
            activation_ms=1_000 * (activated_s - decoded_s),
            encode_ms=1_000 * (encoded_s - activated_s),
            blob_bytes=len(self.blob),
            queued=session.summary().queued,
            sent=sent,
        )

    def _activate(self, session: Session, events: list[Event]) -> int:
        """Returns how many messages the client is sent."""
        self._now_ms += _BATCH_MS
        commands = session.handle_all(events, now_ms=self._now_ms)
        sent = [command.packet_id for command in commands if isinstance(command, SendPublish) and command.packet_id]
        self._unacknowledged += sent
        return len(sent)

    def _acknowledgements(self) -> list[Event]:
        acknowledged = self._unacknowledged[:ACKNOWLEDGEMENTS]
        del self._unacknowledged[:ACKNOWLEDGEMENTS]
        return [PubAckReceived(connection_id=_CONNECTION_ID, packet_id=packet_id) for packet_id in acknowledged]

    def _messages(self, count: int) -> list[Event]:
        first, self._offset = self._offset, self._offset + count
        return [
            MessageSubmitted(
                message=Message(
                    message_id=MessageId(f"0-{offset}"), topic="bench/busy", payload=_PAYLOAD, accepted_ms=self._now_ms
                ),
                position=Position(0, offset),
            )
            for offset in range(first, first + count)
        ]


def measure(size_bytes: int, turns: int) -> dict[str, float]:
    """Returns the medians of so many micro-batches."""
    client = BusyClient(2 * size_bytes)
    client.fill(size_bytes)
    gc.collect()
    client.micro_batch()  # the first one does not count
    costs = [client.micro_batch() for _ in range(turns)]
    if any(cost.sent != ACKNOWLEDGEMENTS for cost in costs):
        raise RuntimeError(f"the client should be sent {ACKNOWLEDGEMENTS} messages in each micro-batch: {costs}")
    return {
        "queued": costs[-1].queued,
        "blob_bytes": costs[-1].blob_bytes,
        **{
            name: median(getattr(cost, name) for cost in costs)
            for name in ("decode_ms", "activation_ms", "encode_ms", "whole_ms")
        },
        "longest_ms": max(cost.whole_ms for cost in costs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="0,5,50,100", help="sizes of the queue, with commas between")
    parser.add_argument("--turns", type=int, default=10, help="measured micro-batches for each size")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    table = Table(
        "queue, MB",
        "messages",
        "state, MB",
        "decode, ms",
        "activation, ms",
        "encode, ms",
        "together, ms",
        "longest, ms",
        title=f"the session of one busy client in each micro-batch with {ACKNOWLEDGEMENTS} acknowledgements, medians",
    )
    results: dict[str, dict[str, float]] = {}
    for megabytes in arguments.megabytes.split(","):
        result = results[megabytes] = measure(int(megabytes) * MEGABYTE, arguments.turns)
        times_ms = [f"{result[name]:,.1f}" for name in ("decode_ms", "activation_ms", "encode_ms", "whole_ms", "longest_ms")]
        table.add_row(megabytes, f"{result['queued']:,.0f}", f"{result['blob_bytes'] / MEGABYTE:,.1f}", *times_ms)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    Console(width=_WIDTH).print(table)


if __name__ == "__main__":
    main()
