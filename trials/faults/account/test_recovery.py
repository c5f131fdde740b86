"""trials/faults/account/recovery.py: from when a fault is over until nobody waits."""

import pytest

from trials.faults.account.facts import Attempt, DeviceFacts, End, Facts, Sent, Suffered
from trials.faults.account.recovery import LATE_S, QUIET_S, recoveries
from trials.faults.plan.characters import Character, Keeping
from trials.faults.plan.faults import Fault, Kind, Victim

BEGAN_S, ENDED_S = 1_000.0, 1_010.0
KILLED = Suffered(fault=Fault(victim=Victim.KAFKA, kind=Kind.FREEZE), began_s=BEGAN_S, ended_s=ENDED_S)


def character(keeping: Keeping) -> Character:
    return Character(client_id=f"{keeping}-1", keeping=keeping, level=5, expiry_s=60, will_delay_s=0, patience_s=5.0)


def attempt(began_s: float, *, ended_s: float | None = None, end: End = End.CLOSED, silent_s: float = 0.0) -> Attempt:
    return Attempt(
        gateway="a",
        will=b"",
        clean=False,
        began_s=began_s,
        accepted_s=began_s + 0.1,
        ended_s=ended_s,
        heard_s=(ended_s or began_s) - silent_s,
        end=end,
    )


def recovery(
    *messages: tuple[float, float],
    keeping: Keeping = Keeping.KEPT,
    attempts: tuple[Attempt, ...] = (attempt(900.0),),
    for_later: bool = False,
) -> tuple[float, float]:
    """messages: when sent, when arrived. Returns the recovery and the longest wait."""
    device = DeviceFacts(character=character(keeping), attempts=list(attempts))
    device.first_s = {b"%d" % number: arrived_s for number, (_, arrived_s) in enumerate(messages)}
    sent = [
        Sent(message_id=str(number), client_id=device.client_id, qos=1, sent_s=sent_s, due_s=sent_s + 1 if for_later else None)
        for number, (sent_s, _) in enumerate(messages)
    ]
    (found,) = recoveries(Facts(devices=[device], sent=sent, suffered=[KILLED]))
    return found.recovered_s, found.longest_s


def test_nobody_waited() -> None:
    assert recovery() == (0.0, 0.0)
    assert recovery((1_001.0, 1_001.0 + LATE_S), (1_010.0, 1_010.1)) == (0.0, 0.0)


def test_the_last_message_that_came_late_says_when_it_was_over() -> None:
    assert recovery((1_002.0, 1_014.0), (1_009.0, 1_013.0), (1_015.0, 1_015.1)) == (4.0, 12.0)


def test_a_message_for_later_is_not_late() -> None:
    assert recovery((1_002.0, 1_014.0), for_later=True) == (0.0, 0.0)


def test_what_is_sent_after_a_kill_and_comes_late_belongs_to_it() -> None:
    assert recovery((ENDED_S + QUIET_S, 1_020.0)) == (10.0, 1_020.0 - ENDED_S - QUIET_S)


def test_what_arrived_during_the_fault_was_waited_for_and_prolongs_nothing() -> None:
    assert recovery((999.0, 1_008.0)) == (0.0, 9.0)


@pytest.mark.parametrize("message", [(980.0, 999.0), (ENDED_S + QUIET_S + 0.1, 1_030.0)])
def test_what_was_late_before_or_long_after_it_does_not_count(message: tuple[float, float]) -> None:
    assert recovery(message) == (0.0, 0.0)


def test_a_device_that_is_away_because_it_wants_to_does_not_wait() -> None:
    away = (attempt(900.0, ended_s=1_001.0, end=End.GOODBYE), attempt(1_019.0))
    assert recovery((1_005.0, 1_020.0), attempts=away) == (0.0, 0.0)


@pytest.mark.parametrize("left", [attempt(900.0, ended_s=1_001.0, end=End.CUT, silent_s=5.1), attempt(900.0, ended_s=1_001.0)])
def test_a_device_that_gave_up_on_silence_or_was_closed_waits(left: Attempt) -> None:
    assert recovery((1_005.0, 1_020.0), attempts=(left, attempt(1_019.0))) == (10.0, 15.0)


@pytest.mark.parametrize("keeping", [Keeping.SHORT, Keeping.CLEAN])
def test_sessions_that_end_are_not_looked_at(keeping: Keeping) -> None:
    assert recovery((1_002.0, 1_014.0), keeping=keeping) == (0.0, 0.0)
