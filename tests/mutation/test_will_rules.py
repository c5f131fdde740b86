"""Each rule of docs/decisions/0062 is taken away in turn, and the histories of tests/properties/wills.py must find it."""

from collections.abc import Callable
from typing import Any, Final

import pytest

import state.session
from sinks.mqtt.connection.handshake import Handshake
from sinks.routing import routing_tables
from state.commands import EndSessionMark
from state.outbound.routing import routed
from tests.properties.wills import run_history

_HISTORIES: Final = 3_000

Change = Callable[[pytest.MonkeyPatch], None]


def replaced(target: Any, name: str, value: Callable[[Any], Any]) -> Change:
    """Makes an attribute of what `value` gives for the original one."""
    return lambda patch: patch.setattr(target, name, value(vars(target)[name]))


def marks_nothing_without_an_interval(original: Any) -> Any:
    def new_records(self: Handshake) -> Any:
        records = original(self)
        if not self.marks_session and self.mark is not None:
            self.has_marked, self.mark = False, None
            records.pop()
        return records

    return new_records


def holds_no_marks(original: Any) -> Any:
    def split(commands: Any) -> Any:
        now, held = original(commands)
        marks = [command for command in held if isinstance(command, EndSessionMark)]
        return [*now, *marks], tuple(command for command in held if command not in marks)

    return split


def holds_only_marks(original: Any) -> Any:
    def split(commands: Any) -> Any:
        _, held = original(commands)
        kept = tuple(command for command in held if isinstance(command, EndSessionMark))
        return [command for command in commands if command not in kept], kept

    return split


MUTANTS: Final[dict[str, Change]] = {
    "a device is served whatever will may come": replaced(
        Handshake,
        "serves_at_once",
        lambda _: property(lambda self: self.registration.serves_at_once and self.was_prompt and not self.claim),
    ),
    "the tables need not be as far as the log": replaced(
        Handshake, "looked_up", lambda original: lambda self, is_current, now_ms: original(self, True, now_ms)
    ),
    "a connection without an interval has no mark": replaced(Handshake, "new_records", marks_nothing_without_an_interval),
    "CONNACK does not wait for the mark": replaced(
        Handshake, "is_answerable", lambda _: property(lambda self: self.empty_list is None)
    ),
    "a connection inherits nothing": replaced(
        Handshake,
        "_are_wills_settled",
        lambda _: lambda self, *, is_withdrawn=False: self.connect.will is None or is_withdrawn,
    ),
    "each DISCONNECT withdraws the will": replaced(
        Handshake,
        "ending_mark",
        lambda original: (
            lambda self, changed_expiry_s=None, *, is_withdrawn=False: original(self, changed_expiry_s, is_withdrawn=True)
        ),
    ),
    "the mark of a will ends when the session accepts its connection": replaced(
        Handshake,
        "mark_once_accepted",
        lambda _: lambda self: self.end_of_mark() if self.has_marked and not self.accepted_expiry_s else None,
    ),
    "AcceptConnection does not wait for the will": replaced(state.session, "split_behind_wills", holds_only_marks),
    "the end of the mark does not wait for the will": replaced(state.session, "split_behind_wills", holds_no_marks),
    "a mark without the header is settled": replaced(
        routing_tables, "read_mark", lambda original: lambda *args: original(*args)._replace(wills_settled=True)
    ),
    "the end of a session takes the mark of the next will along": replaced(
        routed, "end_of_activation", lambda original: lambda *args, **kwargs: original(*args, **{**kwargs, "has_will": False})
    ),
}


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_history_finds_the_missing_rule_of_wills(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[rule](monkeypatch)
    for seed in range(_HISTORIES):
        try:
            run_history(seed)
        except AssertionError:
            return
    pytest.fail(f"no history has found: {rule}")
