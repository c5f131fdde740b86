"""Errors of the environment: the configuration, the topics, the address of Kafka.

Each error is read by a person, so its text says what was found and ends with what to do next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from state.errors import InflightError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationProblem:
    """One wrong key or value. where: the file, variable or flag that it comes from; key: dotted; message: what is allowed."""

    where: str
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.message}" if self.key else f"{self.where}: {self.message}"


class ConfigurationError(InflightError):
    """The configuration cannot be used; carries everything that is wrong with it, not only the first thing."""

    def __init__(self, problems: Sequence[ConfigurationProblem]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(
            f"{count} in the configuration:\n{lines}\n"
            "conf/inflight.toml explains every key; `inflight config` shows what is in force."
        )


class UnsafeTopics(InflightError):
    """Topics that would lose data, or that are missing; `problems` has one line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(
            f"the topics would lose data:\n{lines}\nMend them with kafka-configs, or create missing ones with `inflight topics`."
        )


class KafkaUnreachable(InflightError):
    """Kafka does not answer, or refuses; the text says which server and why."""

    @classmethod
    def of(cls, bootstrap_servers: str, error: Exception) -> Self:
        """Makes the error from the exception of a Kafka client."""
        return cls(
            f"Kafka at {bootstrap_servers} does not do what is asked: {type(error).__name__}: {error}. "
            "Check kafka.bootstrap_servers, that Kafka runs, and the login and the certificates in [kafka]."
        )
