"""trials/faults/account/account_of_presence.py: each wrong word about a client is noticed, and each copy is left out."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from trials.faults.account.account_of_presence import online, violations
from trials.faults.account.account_of_sessions import WITHIN_S
from trials.faults.account.facts import (
    Attempt,
    DeviceFacts,
    End,
    Facts,
    Outage,
    SaidPresence,
    SessionRow,
    Status,
    Step,
)
from trials.faults.plan.characters import Character, Keeping

FIRST_S, AWAY_S, BACK_S, LEFT_S = 100.0, 200.0, 300.0, 400.0
"""The device connects, its session ends with the connection, it connects again, and leaves."""


class History:
    """A device with two long connections and a long absence; each is in the log a second later."""

    def __init__(self, keeping: Keeping = Keeping.CLEAN) -> None:
        character = Character(client_id="d", keeping=keeping, level=5, expiry_s=0, will_delay_s=0, patience_s=5.0)
        self.device = DeviceFacts(character=character, attempts=[_attempt(FIRST_S, AWAY_S), _attempt(BACK_S, LEFT_S)])
        self.facts = Facts(devices=[self.device])
        left = (Step.DISCONNECTED, Status.OFFLINE) if keeping is Keeping.KEPT else (Step.SESSION_ENDED, Status.GONE)
        self.say(FIRST_S, 7, Step.CONNECTED, Status.ONLINE)
        self.say(AWAY_S, 7, *left)
        self.say(BACK_S, 8, Step.CONNECTED, Status.ONLINE)
        self.say(LEFT_S, 8, *left)

    def say(self, at_s: float, connection_id: int, step: Step, status: Status) -> None:
        time_s = at_s + 1
        self.facts.sessions.append(SessionRow(client_id="d", step=step, time_s=time_s))
        said = SaidPresence(client_id="d", status=status, connection_id=connection_id, time_s=time_s, since_s=time_s)
        self.facts.presence.append(said)

    def change(self, number: int, **changes: object) -> None:
        self.facts.presence[number] = replace(self.facts.presence[number], **changes)

    def come_late(self, number: int, late_s: float) -> None:
        self.change(number, time_s=self.facts.presence[number].time_s + late_s)

    def found(self) -> list[str]:
        return [violation.what for violation in violations(self.facts)]


def _attempt(began_s: float, ended_s: float) -> Attempt:
    return Attempt(
        gateway="a",
        will=b"%d" % began_s,
        clean=True,
        began_s=began_s,
        accepted_s=began_s,
        heard_s=ended_s,
        ended_s=ended_s,
        end=End.GOODBYE,
    )


@pytest.mark.parametrize("keeping", [Keeping.KEPT, Keeping.CLEAN])
def test_a_history_in_which_all_is_well_has_no_violation(keeping: Keeping) -> None:
    assert History(keeping).found() == []


def test_copies_of_the_last_record_are_left_out() -> None:
    history = History()
    history.facts.presence.insert(1, history.facts.presence[0])
    history.facts.presence.append(history.facts.presence[-1])
    assert history.found() == []


def test_a_new_session_may_have_a_lower_connection_id() -> None:
    history = History()
    for number in (2, 3):
        history.change(number, connection_id=3)
    assert history.found() == []
    kept = History(Keeping.KEPT)
    for number in (2, 3):
        kept.change(number, connection_id=3)
    assert kept.found(), "the session that knows the higher one lives"


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda history: history.facts.presence.clear(), "its presence was never announced"),
        (lambda history: history.facts.presence.pop(), "its presence is online at the end of the run, and it is gone"),
        (lambda history: history.facts.presence.pop(1), "online 28 s after the end of its connection (200.000)"),
        (lambda history: history.facts.presence.pop(2), "not online 28 s after CONNACK and later (300.000)"),
        (lambda history: history.come_late(1, 40), "online 28 s after the end of its connection (200.000)"),
        (lambda history: history.come_late(2, 40), "not online 28 s after CONNACK and later (300.000)"),
        (
            lambda history: history.change(1, status=Status.OFFLINE),
            "its presence is offline after a micro-batch, and gone by the ledger (201.000)",
        ),
        (
            lambda history: history.say(350, 9, Step.CONNECTED, Status.ONLINE) or history.facts.presence.pop(),
            "its presence has no record of a micro-batch after which it is online by the ledger (351.000)",
        ),
        (
            lambda history: history.facts.sessions.pop(),
            "its presence has a record of a micro-batch of which the ledger says nothing (401.000)",
        ),
    ],
    ids=[
        "nothing",
        "online for ever",
        "no end",
        "no beginning",
        "a late end",
        "a late beginning",
        "not the ledger",
        "no takeover",
        "no row",
    ],
)
def test_what_must_not_be_said_is_found(wrong: Callable[[History], None], expected: str) -> None:
    history = History()
    wrong(history)
    assert expected in history.found()


def test_a_client_is_not_called_offline_while_it_is_connected() -> None:
    history = History()
    false = SaidPresence(client_id="d", status=Status.OFFLINE, connection_id=8, time_s=390, since_s=390)
    history.facts.presence.insert(3, false)
    assert "not online 28 s after CONNACK and later (300.000)" in history.found()


@pytest.mark.parametrize("kind", ["outages", "standstills"])
def test_an_outage_of_the_engine_begins_the_time_anew(kind: str) -> None:
    history = History()
    history.come_late(2, WITHIN_S + 10)
    assert history.found()
    setattr(history.facts, kind, [Outage(began_s=BACK_S, ended_s=BACK_S + 15)])
    assert history.found() == []


def test_a_connection_that_the_session_refuses_is_never_online() -> None:
    history = History()
    del history.facts.presence[2:], history.facts.sessions[2:]
    assert history.found()
    history.facts.refused = frozenset({history.device.attempts[1].will})
    assert history.found() == []


def test_a_refused_connect_may_be_announced() -> None:
    history = History()
    history.say(250, 7, Step.REFUSED, Status.GONE)
    row = history.facts.sessions.pop()
    history.facts.presence.insert(2, history.facts.presence.pop())
    assert any("of which the ledger says nothing (251.000)" in text for text in history.found())
    history.facts.refusals = [row]
    assert history.found() == []


def test_only_the_last_word_says_who_is_online() -> None:
    history = History()
    assert online(history.facts.presence) == set()
    assert online(history.facts.presence[:3]) == {"d"}
