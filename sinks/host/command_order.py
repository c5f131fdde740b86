"""Tracks which of the engine's commands one connection has carried out: each once, and all of the same history.

Sequence numbers only grow within a connection, so a number that is not above the last one is a repetition: the engine was killed
in a micro-batch and has executed it again. The same code says the same again, and nothing is missed. Another version of the code
may say something else under these numbers, and so does an engine whose checkpoint is an older copy, which calls itself other
code, too; what was carried out is then not what the session thinks. That connection has to end, and the session is resumed with
the next one.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

BUILD_MISMATCH: Final = (
    "another version of the engine has executed a micro-batch again, or one on an older copy of the checkpoint"
)
"""Why such a connection ends, for the log."""


class CommandStatus(Enum):
    NEW = "new"
    REPEATED = "repeated"
    BUILD_MISMATCH = "a repetition by other code"


@dataclass(slots=True)
class CommandOrder:
    """Keeps the order of the commands of one connection."""

    _last: int = 0
    _code: str = ""
    _code_from: int = 0
    """The first number that `_code` had. What is repeated below it is older than that: Kafka's log is read again."""

    def status_of(self, sequence: int, code: str) -> CommandStatus:
        """Returns whether the next command, in the order of the log, is to be carried out (NEW).

        Args:
            code: The build of its record.
        """
        if sequence > self._last:
            self._last = sequence
            if code != self._code:
                self._code, self._code_from = code, sequence
            return CommandStatus.NEW
        if code == self._code or sequence < self._code_from:
            return CommandStatus.REPEATED
        return CommandStatus.BUILD_MISMATCH
