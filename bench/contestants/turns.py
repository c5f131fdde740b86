"""Measures a contestant in a turn, with a start of its own for each stage."""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from bench.contestants.contestant import Contestant
from bench.contestants.entrants import Entrant
from bench.contestants.measurements import START, Extent, Figure, Measurements, Stage, is_repeatable
from bench.contestants.routing import RoutingExtent, RoutingMeasurements
from bench.contestants.tables import Run
from bench.contestants.time_limit import TimeLimit
from state.errors import InflightError

_READY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Says how to measure each contestant in each turn.

    settings: for Inflight. minutes: the limit for one contestant. attempts: the most that a part is measured while the host of
    this machine disturbs it, if it can be measured again.
    """

    extent: Extent | RoutingExtent
    stages: Sequence[Stage]
    settings: list[str]
    minutes: float
    attempts: int = 1


def measure(entrant: Entrant, run: Run, plan: Plan, bar: Progress) -> None:
    """Measures one contestant once. After an error a stage has the measurements up to it, and the next stage goes on."""
    limit = TimeLimit(60 * plan.minutes)
    task = bar.add_task("", total=sum(len(stage.parts) for stage in plan.stages))
    errors: list[str] = []

    def begin(step: str) -> None:
        bar.update(task, description=f"{run.title}, turn {run.turn}: {step}")

    for stage in plan.stages:
        if stage.with_standby and not entrant.kind.has_standby:
            run.figures |= {part: Figure(note="has no standby") for part in stage.parts}
        else:
            try:
                _measure_stage(entrant, run, plan, stage, limit, begin)
            except (InflightError, OSError, RuntimeError, subprocess.SubprocessError) as error:
                missing = [part for part in stage.parts if part not in run.figures]
                errors.append(f"no {', '.join(missing)}: {type(error).__name__}: {error}")
        bar.advance(task, len(stage.parts))
    run.error = "; ".join(errors)
    begin("failed" if errors else "done")


def _measure_stage(entrant: Entrant, run: Run, plan: Plan, stage: Stage, limit: TimeLimit, begin: Callable[[str], None]) -> None:
    begin("starts")
    with tempfile.TemporaryDirectory(prefix="inflight-bench-") as name, contextlib.ExitStack() as stack:
        with limit.step():
            began_s = time.monotonic()
            contestant = stack.enter_context(entrant.make(Path(name), plan.settings, standby=stage.with_standby))
            if not stage.with_standby:
                run.figures.setdefault(START, Figure(values={"start_s": time.monotonic() - began_s}))
            parts = _parts(contestant, plan.extent, stack)
        for part in stage.parts:
            for figure in _attempts(part, parts[part], plan.attempts, limit, begin):
                run.figures[part] = figure


def _attempts(
    part: str, measurement: Callable[[], Figure], most: int, limit: TimeLimit, begin: Callable[[str], None]
) -> Iterator[Figure]:
    """Returns the least disturbed measurement so far after each of them, until one is not disturbed."""
    best: Figure | None = None
    for attempt in range(1, most + 1 if is_repeatable(part) else 2):
        begin(part if attempt == 1 else f"{part}, once more")
        with limit.step():
            figure = measurement()
        best = figure if best is None or figure.stolen < best.stolen else best
        best.attempts = attempt
        yield best
        if not best.is_disturbed:
            return


def _parts(
    contestant: Contestant, extent: Extent | RoutingExtent, stack: contextlib.ExitStack
) -> dict[str, Callable[[], Figure]]:
    if isinstance(extent, RoutingExtent):
        return RoutingMeasurements(contestant, extent).parts()
    backend = stack.enter_context(contestant.backend())
    backend.line(_READY_S)
    return Measurements(contestant, backend, extent).parts()
