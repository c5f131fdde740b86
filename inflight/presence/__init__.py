"""Tells a backend which devices are connected: `from inflight import Presence` (docs/guides/presence.md). It needs neither
Java nor Spark."""

from inflight.presence.model import ClientPresence, PresenceStatus
from inflight.presence.presence import Presence

__all__ = ["ClientPresence", "Presence", "PresenceStatus"]
