"""Keeps a bridge in the consumer group of the bridges only while it can serve devices.

A member of the group gets partitions, and with them their devices. Without its broker it would let them starve, although another
bridge could serve them. So:
1. A bridge joins when it is connected to its broker, and not before.
2. It leaves when the broker has been away for `group_session_timeout_ms`: for the group, a silent broker is a silent bridge. A
   restart of the broker that is shorter moves no partitions.
3. It joins again when it is connected again. A single bridge leaves and joins once for each outage, not at every attempt.
"""

import asyncio
from typing import Final

import structlog

from sinks.kafka.tail import CommandListener, CommandTail

_log: Final = structlog.get_logger(__name__)


class GroupMembership:
    """Joins and leaves for `listener`. All methods are called on the event loop.

    Args:
        leave_after_s: How long the broker may be away.
    """

    def __init__(self, tail: CommandTail, listener: CommandListener, *, leave_after_s: float) -> None:
        self._tail = tail
        self._listener = listener
        self._leave_after_s = leave_after_s
        self._is_member = False
        self._leaving: asyncio.TimerHandle | None = None

    def broker_up(self) -> None:
        self._stay()
        if not self._is_member:
            self._is_member = True
            _log.info("group_joined", reason="connected to the broker")
            self._tail.start(self._listener)

    def broker_down(self) -> None:
        """May be called again while the broker is away; the time runs from the first call."""
        if self._is_member and self._leaving is None:
            self._leaving = asyncio.get_running_loop().call_later(self._leave_after_s, self._leave)

    def stop(self) -> None:
        """Leaves the rest to the end of the tail."""
        self._stay()

    def _stay(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def _leave(self) -> None:
        self._leaving = None
        self._is_member = False
        _log.warning(
            "group_left",
            reason=f"the broker has been away for {self._leave_after_s:g} s",
            action="another bridge takes its devices; this one joins again when it is connected to the broker",
        )
        self._tail.leave()
