"""Answers questions about the live sessions: by the engine that runs here, else by a Spark that reads the checkpoint."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from streaming.engine.answers.asking import ask_engine

if TYPE_CHECKING:
    from streaming.config.settings import Settings
    from streaming.engine.spark_options import SparkJars
    from streaming.history.session import HistorySession

_LONG_S: Final = 60.0
"""A million sessions take longer to read than a few."""


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
        with self._spark() as history:
            return history.longest_queues(limit=limit, prefix=prefix)

    def quarantined(self) -> list[str]:
        """Returns the ids of the quarantined clients, sorted."""
        answer: list[str] | None = self.ask("quarantined")
        if answer is not None:
            return answer
        from streaming.history.requests import quarantined_clients

        with self._spark() as history:
            return quarantined_clients(history)

    def ask(self, question: str, *, timeout_s: float = _LONG_S, **parameters: object) -> Any | None:
        """Returns the running engine's answer; None if none runs here. Raises EngineBusy."""
        settings = self._settings
        return ask_engine(settings.engine.data_dir, settings.sessions_checkpoint, question, timeout_s, **parameters)

    def _spark(self) -> "HistorySession":
        from streaming.history.session import HistorySession  # PySpark takes a second to import

        return HistorySession(self._settings, self._jars(), brief=True)
