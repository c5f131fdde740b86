"""Defines the records of `inflight.wake-ups`: something in the log should not wait for the engine's next micro-batch.

The topic has one partition. A record has no key, no headers and no value that means anything: what counts is that it comes. It is
appended behind the record that it speaks for. A process that has said in its lease that it sends wake-ups (`Lease.wakes`) sends
one at most every `INTERVAL_MS`; what becomes urgent meanwhile is said at the end of that time. A wake-up that is lost costs
latency: the engine waits for three times `engine.lazy_ms` at most.
"""

from typing import Final

WAKE_UP: Final = b""
"""Key and value of a record."""

INTERVAL_MS: Final = 250
"""An engine that was woken up runs micro-batches without long pauses for some seconds, so it needs no more."""
