"""Takeovers: when a standby worked after an engine was killed → what of it must not have happened. Pure."""

from collections.abc import Iterable, Iterator

from trials.faults.account.facts import Facts, Takeover, Violation

TAKEOVER_S = 15.0
"""Five times what it takes on a quiet machine, and no more than a start without a standby takes on a busy one."""


def violations(facts: Facts) -> Iterator[Violation]:
    """Yields standbys that were late, or did not take over."""
    for takeover, took_s in zip(facts.takeovers, waits(facts.takeovers), strict=True):
        if not takeover.by_standby:
            yield Violation(client_id="standby", what=f"did not take over; the killed engine was back after {took_s:.0f} s")
        elif took_s > TAKEOVER_S:
            yield Violation(client_id="standby", what=f"took over after {took_s:.0f} s")


def waits(takeovers: Iterable[Takeover]) -> list[float]:
    """Returns the seconds from each death to the first micro-batch."""
    return [takeover.works_s - takeover.died_s for takeover in takeovers]
