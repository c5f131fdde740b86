"""Answers questions about the live sessions: by the engine that runs here, else by a Spark that reads the checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streaming.engine.answers.asking import ask_engine
from streaming.history.errors import NoArchive
from streaming.spark_internals.locations import has_no_batch

if TYPE_CHECKING:
    from streaming.config.settings import Settings
    from streaming.engine.spark_options import SparkJars
    from streaming.history.stored_sessions import StoredSessions

_LONG_S: Final = 60.0
"""A million sessions take longer to read than a few."""
_MANY: Final = 100_000
"""Sessions that the engine is asked for at once: it sends its answer as one document."""


class LiveSessions:
    """Reads sessions. The engine answers in about a second; starting Spark takes fifteen.

    Methods raise EngineBusy, and NoArchive if no engine answers and there is no readable checkpoint.

    Args:
        jars: Returns the jars of Spark. Called only if Spark has to be started.
    """

    def __init__(self, settings: "Settings", jars: "Callable[[], SparkJars]") -> None:
        self._settings = settings
        self._jars = jars

    def longest(self, *, limit: int, prefix: str = "") -> list[dict[str, Any]]:
        """Returns rows of `inflight sessions`, the longest queues first.

        Args:
            prefix: How their client ids begin.
        """
        answer = self.ask("sessions", limit=limit, prefix=prefix)
        if answer is not None:
            found: list[dict[str, Any]] = answer["sessions"]
            return found
        with self._spark() as stored:
            return stored.longest_queues(limit=limit, prefix=prefix)

    def every(self, directory: Path) -> Any:
        """Returns all sessions as an Arrow table or dataset. Says on standard error when Spark is started for them.

        Args:
            directory: Gets the files of Spark's answer.
        """
        from streaming.history.session_relation import sessions_dataset, sessions_table
        from streaming.terminal import say

        answer: list[dict[str, Any]] | None = self.ask("rows", limit=_MANY)
        if answer is not None and len(answer) < _MANY:
            return sessions_table(answer)
        self._require_checkpoint()
        why = "no engine answers on this data directory" if answer is None else f"there are {_MANY:,} sessions or more"
        say(f"{why}: Spark reads the sessions from the checkpoint, which takes a while", err=True)
        files = directory / "sessions"
        with self._spark() as stored:
            stored.write(files)
        return sessions_dataset(files)

    def quarantined(self) -> list[str]:
        """Returns the ids of the quarantined clients, sorted."""
        answer: list[str] | None = self.ask("quarantined")
        if answer is not None:
            return answer
        with self._spark() as stored:
            return stored.quarantined()

    def client(self, client_id: str) -> dict[str, Any] | None:
        """Returns the row of a client with its stored form in `version` and `blob`; None if there is no session."""
        answer: list[dict[str, Any]] | None = self.ask("client", id=client_id)
        if answer is not None:
            return next(iter(answer), None)
        with self._spark() as stored:
            return stored.client(client_id)

    def ask(self, question: str, *, timeout_s: float = _LONG_S, **parameters: object) -> Any | None:
        """Returns the running engine's answer; None if none runs here. Raises EngineBusy."""
        settings = self._settings
        return ask_engine(settings.engine.data_dir, settings.sessions_checkpoint, question, timeout_s, **parameters)

    def _require_checkpoint(self) -> None:
        """Raises NoArchive at once if Spark, which takes seconds to start, would find nothing."""
        if has_no_batch(location := self._settings.sessions_checkpoint):
            raise NoArchive.without_sessions(location, "no engine answers here, and no micro-batch was completed")

    def _spark(self) -> "StoredSessions":
        self._require_checkpoint()
        from streaming.history.stored_sessions import StoredSessions  # PySpark takes a second to import

        return StoredSessions(self._settings, self._jars())
