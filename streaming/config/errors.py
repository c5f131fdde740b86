"""Errors of the environment: the configuration, the topics, the address of Kafka.

Each error is read by a person, so its text says what was found and ends with what to do next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from state.errors import InflightError

_LOGIN_REFUSED: Final = ("SaslAuthenticationFailedError", "UnsupportedSaslMechanismError")
"""By name, because this module is imported before any client of Kafka."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationProblem:
    """One wrong key or value. where: the file, variable or flag that it comes from; key: dotted, or a flag without a key;
    message: what is allowed."""

    where: str
    key: str
    message: str

    def __str__(self) -> str:
        is_flag_alone = self.where.startswith(self.key)  # true for no key, too
        return f"{self.where}: {self.message}" if is_flag_alone else f"{self.where}: {self.key}: {self.message}"


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
    def without_contact(cls, bootstrap_servers: str, why: str) -> Self:
        """Makes the error for servers at which nobody listens. why: by server, for people."""
        return cls(
            f"Kafka at {bootstrap_servers} does not answer ({why}). Check kafka.bootstrap_servers and that Kafka runs; a command "
            "finds that of `inflight up` by its --data-dir."
        )

    @classmethod
    def of(cls, bootstrap_servers: str, error: Exception, more: str = "") -> Self:
        """Makes the error from the exception of a Kafka client. more: what else to check."""
        what = "refuses the login" if type(error).__name__ in _LOGIN_REFUSED else "does not do what is asked"
        logins = "the login and the certificates in [kafka]"
        return cls(
            f"Kafka at {bootstrap_servers} {what}: {type(error).__name__}: {error}. "
            f"Check kafka.bootstrap_servers, that Kafka runs, {f'{logins}, {more}' if more else f'and {logins}'}."
        )


class TopicsReplaced(InflightError):
    """The offsets of a checkpoint are not those of the topics: these were made anew, or have lost their newest records."""


class RecordsGone(InflightError):
    """Kafka no longer has records that the checkpoint has not read."""


class DamagedCheckpoint(InflightError):
    """Files of the checkpoint are missing or damaged."""
