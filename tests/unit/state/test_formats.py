"""Every format that is stored or sent is compared field by field with fixtures/formats.txt, so no change goes unnoticed.

A change makes this test fail. Decide by the rules of state/records/record.py and state/session_codec.py whether it needs a new
version, and the checkpoint a new format; then `python -m tests.unit.state.test_formats` writes the file anew.
"""

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from state.commands import CommandBatch, Transition
from state.dead_letters.quarantine import Quarantine
from state.events import LoggedEvent
from state.model import Outcome, Subscription
from state.records.dead_letters import DeathJson
from state.records.leases import Lease
from state.records.ledger import LedgerRow
from state.records.presence import PresenceRecord
from state.records.receipts import Receipt
from state.records.routes import MessagesTopic, Route
from state.records.subscriptions import SubscriptionList
from state.records.throttle import Throttle
from state.session_codec import SessionV1

FORMATS = Path(__file__).parent / "fixtures" / "formats.txt"
ROOTS = (
    LoggedEvent,
    CommandBatch,
    Lease,
    Route,
    MessagesTopic,
    Receipt,
    LedgerRow,
    Transition,
    Outcome,
    Throttle,
    PresenceRecord,
    DeathJson,
    SessionV1,
    Subscription,
    SubscriptionList,
    Quarantine,
)


def described(*roots: Any) -> str:
    """A line for each structure and enumeration in them."""
    parts = (part for root in roots for part in _within(msgspec.inspect.type_info(root)))
    return "".join(sorted({f"{line}\n" for part in parts if (line := _line(part)) is not None}))


def _within(part: Any) -> Iterator[Any]:
    """A description of msgspec, and all that it consists of."""
    yield part
    match part:
        case msgspec.inspect.StructType():
            inner = [field.type for field in part.fields]
        case msgspec.inspect.UnionType():
            inner = list(part.types)
        case msgspec.inspect.TupleType():
            inner = list(part.item_types)
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
            inner = [part.item_type]
        case msgspec.inspect.Metadata():
            inner = [part.type]
        case _:
            inner = []
    for one in inner:
        yield from _within(one)


def _line(part: Any) -> str | None:
    match part:
        case msgspec.inspect.StructType(cls=cls):
            tag = "" if part.tag is None else f" {part.tag}"
            fields = [f"{field.encode_name}{'' if field.required else '?'}" for field in part.fields]
            return f"{cls.__name__}{tag}: {' '.join(fields)}"
        case msgspec.inspect.EnumType(cls=cls):
            members: list[enum.Enum] = list(cls)
            return f"{cls.__name__}: {' '.join(str(member.value) for member in members)}"
        case _:
            return None


def test_the_formats_are_those_that_were_decided_on() -> None:
    assert described(*ROOTS) == FORMATS.read_text(encoding="utf-8")


def test_a_change_of_a_field_a_kind_or_a_value_would_be_seen() -> None:
    assert described(Route) == "Route: connection_id partition\n"
    assert described(Lease) == "Lease: holder duration_ms ended? wakes? lacks?\n"
    kinds = described(LoggedEvent)
    assert "\nClientDisconnected 2: connection_id reason_code? session_expiry_interval_s? unanswered?\n" in kinds
    assert "\nQoS: 0 1 2\n" in kinds


if __name__ == "__main__":
    FORMATS.write_text(described(*ROOTS), encoding="utf-8")
