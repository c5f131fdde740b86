"""The lease under which a gateway or a bridge holds its connections (docs/decisions/0009-leases.md).

Theory of operation
1. Every sixth of its duration the holder appends a renewal. One that Kafka has confirmed holds until a whole duration after the
   moment when it was *sent*, on a clock that also counts while the process or the machine stands still.
2. A holder whose lease has passed has no connections: it closes those that it has, and takes in nobody before it has another
   lease. That one has another id: a lease that has passed never holds again.
3. The first renewal also says what the brokers' clock says (broker_clock.py), by which connections are numbered. One that was on
   its way for long says it only roughly: the lease is not taken before another one has said it better, or tried to.
4. Each connection is told to its session with the id of the lease. The engine ends the connections of a lease that it has seen no
   renewal of for one and a half durations; by then the holder has closed them, or cannot speak for them any more.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
import structlog

from sinks.kafka.append import EventLog
from state.records.leases import Lease, encode_lease

_log: Final = structlog.get_logger(__name__)
RENEWALS: Final = 6
"""Renewals in one duration of the lease; a few may fail."""
_ROUGH_MS: Final = 20
_TRIES: Final = 10
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_clock_ms() -> float:
    """Milliseconds of a clock that never goes back and, on Linux, runs while the machine is suspended."""
    return time.clock_gettime_ns(_CLOCK) / 1_000_000


class HeldLease:
    """The lease of this process. All callbacks are called on the event loop that `start` is called on.

    Args:
        holder: The name of the process, for people.
        duration_ms: The duration of a lease.
        taken: Called when a lease is held: connections may be made from now on.
        passed: Called when the lease has expired: close all connections.
        renewing: Called with every renewal.
        wakes: Returns True if the process sends wake-ups, as its renewals say (Lease).
        lacks: Returns what the process lacks while it holds the lease, as its renewals say (Lease).
        clock_ms: A monotonic clock that also counts while the machine is suspended.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        topic: str,
        holder: str,
        duration_ms: int,
        taken: Callable[[], None],
        passed: Callable[[], None],
        renewing: Callable[[], None] = lambda: None,
        wakes: Callable[[], bool] = lambda: False,
        lacks: Callable[[], str] = str,
        clock_ms: Callable[[], float] = boot_clock_ms,
    ) -> None:
        self.lease_id = _new_id()
        """The id of the lease that is held, or of the next one."""
        self._log = log
        self._topic = topic
        self._lease = Lease(holder=holder, duration_ms=duration_ms)
        self._wakes = wakes
        self._lacks = lacks
        self._taken = taken
        self._passed = passed
        self._renewing = renewing
        self._clock_ms = clock_ms
        self._holds_until_ms = 0.0
        self._is_held = False
        self._timer: asyncio.TimerHandle | None = None
        self._tries_left = _TRIES

    def name(self, holder: str) -> None:
        """Gives the process another name for people, from the next renewal on."""
        self._lease = msgspec.structs.replace(self._lease, holder=holder)

    def start(self) -> None:
        """Apply for a lease, and renew it until `end`."""
        self._tick(asyncio.get_running_loop())

    def holds(self) -> bool:
        """Returns True if the lease holds now. If it has just expired, calls `passed` first."""
        if self._is_held and self._clock_ms() >= self._holds_until_ms:
            self._is_held = False
            _log.error(
                "lease_passed",
                lease=self.lease_id,
                action="Kafka did not confirm a renewal in time, or this process stood still; its devices connect again",
            )
            self.lease_id = _new_id()
            self._passed()
        return self._is_held

    def renew(self) -> None:
        """Renews it before its time, because what the process lacks has changed."""
        if self._is_held and self._timer is not None:
            self._renew()

    def end(self, *, all_told: bool) -> None:
        """Stops the renewals.

        Args:
            all_told: True if the end of every connection is in the log, so that the engine need not look for them.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if all_told and self.holds():
            self._is_held = False
            over = Lease(holder=self._lease.holder, duration_ms=self._lease.duration_ms, ended=True)
            self._log.append(self._topic, self.lease_id.encode(), encode_lease(over), None, lambda error: None)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self.holds()
        self._renew()
        self._timer = loop.call_later(self._lease.duration_ms / RENEWALS / 1_000, self._tick, loop)
        self._renewing()

    def _renew(self) -> None:
        confirmed = partial(self._confirmed, self.lease_id, self._clock_ms())
        renewal = Lease(
            holder=self._lease.holder,
            duration_ms=self._lease.duration_ms,
            wakes=self._wakes(),
            lacks=self._lacks() if self._is_held else "",
        )
        self._log.append(self._topic, self.lease_id.encode(), encode_lease(renewal), None, confirmed)

    def _confirmed(self, lease_id: str, sent_ms: float, error: Exception | None) -> None:
        self.holds()
        until_ms = sent_ms + self._lease.duration_ms
        if error is not None or lease_id != self.lease_id or self._timer is None or until_ms <= self._clock_ms():
            return
        self._holds_until_ms = max(self._holds_until_ms, until_ms)
        if not self._is_held:
            if self._tries_left and self._clock_ms() - sent_ms > _ROUGH_MS:
                self._tries_left -= 1
                self._renew()
                return
            self._is_held = True
            self._tries_left = _TRIES
            _log.info("lease_taken", lease=lease_id)
            self._taken()


def _new_id() -> str:
    return secrets.token_hex(8)
