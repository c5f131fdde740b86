"""Has what the parts of a world share."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tests.properties.fast_path.scenario import Scenario

CLIENT: Final = "device"
_START_MS: Final = 1_700_000_000_000


class Step(NamedTuple):
    """A step that can happen next. weight: how often it is chosen, compared with the other steps."""

    weight: int
    name: str
    run: Callable[[], object]


class Shared:
    """The state that all parts know. faults_left: how many may still happen."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now_ms = _START_MS
        self.faults_left = scenario.faults


def do_one(steps: Iterable[Step], choice: int, history: list[str]) -> None:
    """Does one of the steps. choice: any number; it selects a step by the steps' weights."""
    steps = list(steps)
    left = choice % sum(step.weight for step in steps)
    for step in steps:
        left -= step.weight
        if left < 0:
            history.append(step.name)
            step.run()
            return
