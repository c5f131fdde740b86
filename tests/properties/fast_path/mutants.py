"""Breaks the rules of the fast path one by one (broken_rules.py): each has to make some history fail.

    python -m tests.properties.fast_path.mutants

`make soak` runs this: some take many histories, because several things have to come together. It fails if nothing notices a
mutant. It also fails if a history that seems to notice one fails with nothing broken: that is an error of Inflight's.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

from rich.console import Console
from rich.progress import track
from rich.table import Table

from state.errors import InflightError
from tests.properties.fast_path.broken_rules import MUTANTS, Mutant
from tests.properties.fast_path.story import story_of
from tests.properties.fast_path.world import World


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    patches = [patch.object(*one) for one in mutant.patches]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


HISTORIES: Final = 1_000
"""So many are told of a mutant before nothing has noticed it."""
STEPS: Final = 200


def failure_of(number: int, mutant: Mutant) -> str | None:
    """How this history fails, None = it does not. The same for the same number. Nothing is broken here: see `applied`."""
    dice = random.Random(number)
    try:
        world = World(mutant.story(story_of(number)))
        for _ in range(STEPS):
            world.step(dice.randrange(10_000))
        world.come_to_rest()
    except (AssertionError, InflightError) as error:
        return str(error).splitlines()[0]
    return None


class Search:
    """Tells histories of mutants. flawed: those that fail with nothing broken, and how; they show nothing about a mutant."""

    def __init__(self) -> None:
        self.flawed: list[tuple[str, int, str]] = []

    def first_failure(self, name: str) -> tuple[int, str] | None:
        """The first history that notices the mutant, and how; None = none of them does."""
        mutant = MUTANTS[name]
        for number in range(HISTORIES):
            with applied(mutant):
                failure = failure_of(number, mutant)
            if failure is None:
                continue
            failure_anyway = failure_of(number, mutant)
            if failure_anyway is None:
                return number, failure
            self.flawed.append((name, number, failure_anyway))
        return None


def main() -> int:
    console, search = Console(), Search()
    table = Table("rule that is broken", "histories", "noticed by")
    found = {name: search.first_failure(name) for name in track(MUTANTS, "mutants", console=console)}
    for name, failure in found.items():
        table.add_row(name, *(("", "[bold red]nothing") if failure is None else (f"{failure[0] + 1:,}", failure[1])))
    console.print(table)
    for name, number, how in search.flawed:
        console.print(f"[bold red]History {number} of {name!r} fails with nothing broken:[/] {how}")
    return 1 if None in found.values() or search.flawed else 0


if __name__ == "__main__":
    sys.exit(main())
