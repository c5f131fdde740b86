"""Random and mutated input for everything that reads what others write: `make fuzz`, and hours of it in `make soak`.

    python -m trials.fuzz.run --seconds 60 --seed 7

The targets take turns of a second. It fails at the first input after which something is wrong, and says how to see that again;
and at the end if a target has gone on taking memory after the first tenth of its time.
"""

import argparse
import gc
import logging
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from trials.fuzz.target import Target
from trials.fuzz.targets import TARGETS

_TURN_S: Final = 1.0
_WARM_UP: Final = 0.1
MOST_BLOCKS: Final = 20_000
"""Blocks of Python's memory, some two megabytes, by which a target may grow, in bounded caches."""


@dataclass
class Fuzzed:
    """inputs: so far, the number of the next one. grown: blocks of memory since the warm-up."""

    target: Target
    inputs: int = 0
    taken: int = 0
    grown: int = 0

    def feed(self, seed: int) -> None:
        """Feeds the next input. Raises AssertionError, which names the input to feed again."""
        source = f"{seed}/{self.target.name}/{self.inputs}"
        try:
            self.taken += self.target.feed(random.Random(source))
        except Exception as error:
            raise AssertionError(f"input {source}") from error
        self.inputs += 1


def fuzz(seconds: float, seed: int, progress: Progress, directory: Path) -> list[Fuzzed]:
    """Raises AssertionError."""
    targets = [Fuzzed(target(directory)) for target in TARGETS]
    task = progress.add_task("", total=seconds)
    began_s = time.monotonic()
    while (passed_s := time.monotonic() - began_s) < seconds:
        for fuzzed in targets:
            progress.update(task, completed=passed_s, description=fuzzed.target.name)
            before = _blocks()
            turn_ends_s = time.monotonic() + min(_TURN_S, seconds / (2 * len(targets)))
            while time.monotonic() < turn_ends_s:
                fuzzed.feed(seed)
            if passed_s > _WARM_UP * seconds:
                fuzzed.grown += _blocks() - before
    progress.update(task, completed=seconds, description="done")
    return targets


def _blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--seed", type=int, default=None, help="of an earlier run, to see it again; default: another one each time"
    )
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))  # gateways say what they refuse
    console = Console()
    console.print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as directory, Progress(console=console) as progress:
        targets = fuzz(arguments.seconds, seed, progress, Path(directory))
    table = Table("what", "inputs", "taken for good", "memory blocks more")
    for fuzzed in targets:
        table.add_row(fuzzed.target.name, f"{fuzzed.inputs:,}", f"{fuzzed.taken / fuzzed.inputs:.0%}", f"{fuzzed.grown:,}")
    console.print(table)
    growing = [fuzzed.target.name for fuzzed in targets if fuzzed.grown > MOST_BLOCKS]
    if growing:
        console.print(f"[red]memory grows: {', '.join(growing)}")
    return bool(growing)


if __name__ == "__main__":
    sys.exit(main())
