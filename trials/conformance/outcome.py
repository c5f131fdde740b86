"""Says what became of a test of a suite, and which failures a clause of the standard explains."""

import tomllib
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import msgspec


class Verdict(StrEnum):
    """The end of one test. NOT_RUN: the suite has left it out, which counts like a failure."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one test.

    Attributes:
        message: Why it has not passed, in the words of the suite; empty if it has.
        seconds: How long it took.
        attempts: How often it was run; a failed one is repeated alone.
        clause: The clause that explains a failure, from known.toml; empty = none.
    """

    suite: str
    test: str
    verdict: Verdict
    message: str = ""
    seconds: float = 0.0
    attempts: int = 1
    clause: str = ""

    @property
    def needs_explanation(self) -> bool:
        return self.verdict is not Verdict.PASSED and not self.clause


class Known(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A test that may fail: the clause that makes its expectation more than a server owes, and why."""

    suite: str
    test: str
    clause: str
    why: str


def read_known(path: Path) -> tuple[Known, ...]:
    """Reads known.toml. Raises msgspec.ValidationError, tomllib.TOMLDecodeError."""
    return tuple(msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8"))["known"], list[Known]))


def explain(outcomes: Iterable[Outcome], known: Iterable[Known]) -> list[Outcome]:
    """Returns the outcomes, with the clause of those that failed and are known."""
    clauses = {(one.suite, one.test): one.clause for one in known}
    return [
        outcome
        if outcome.verdict is Verdict.PASSED
        else msgspec.structs.replace(outcome, clause=clauses.get((outcome.suite, outcome.test), ""))
        for outcome in outcomes
    ]
