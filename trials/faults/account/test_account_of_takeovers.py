"""trials/faults/account/account_of_takeovers.py: a standby that is late or idle is noticed."""

from trials.faults.account.account_of_takeovers import TAKEOVER_S, violations
from trials.faults.account.facts import Facts, Takeover


def found(took_s: float, *, by_standby: bool = True) -> list[str]:
    facts = Facts(takeovers=[Takeover(died_s=100.0, works_s=100.0 + took_s, by_standby=by_standby)])
    return [violation.what for violation in violations(facts)]


def test_a_standby_that_takes_over_in_time_is_right() -> None:
    assert found(TAKEOVER_S) == []


def test_a_late_standby_is_found() -> None:
    assert found(TAKEOVER_S + 3) == ["took over after 18 s"]


def test_a_standby_that_leaves_the_work_to_the_killed_engine_is_found() -> None:
    assert found(9, by_standby=False) == ["did not take over; the killed engine was back after 9 s"]
