"""Says what a gateway publishes below `$SYS/broker`, and when. Pure; process.py appends it to `inflight.publications`.

1. Nothing, while no client subscribes to a topic of `$SYS`. `#` is no such filter [MQTT-4.7.2-1].
2. Each gateway process publishes its own numbers below `$SYS/broker/gateways/NAME/`.
3. One of them publishes those of all gateways, a little later: it adds up what the others have published.
4. All are retained messages, which expire when they are not renewed. So a gateway that is gone is not counted for long.
"""

import os
import socket
from collections.abc import Iterator
from typing import Final, NamedTuple

from sinks.routing.routing_tables import RoutingTables
from state.records.messages import EXPIRATION, QOS, RETAIN, TOPIC

_ROOT: Final = "$SYS/broker"
_CONNECTED: Final = "clients/connected"
_UPTIME: Final = "uptime"
_TOTALS_LATER_S: Final = 2.0
"""The time in which all gateways publish their own numbers, and read those of the others, after the first SUBSCRIBE."""
_LIVES: Final = 3
"""A number expires after so many intervals."""


class SystemPublication(NamedTuple):
    """A record of `inflight.publications`."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


class SystemTopics:
    """The topics of one gateway process."""

    def __init__(self, tables: RoutingTables, *, name: str, version: str, interval_ms: int, began_s: float) -> None:
        """Notes what stays.

        Args:
            name: Of the process, unique among the gateways, without `/`, `+` and `#`.
            interval_ms: 0 = nothing is published.
            began_s: When the process began, on the clock of `due`.
        """
        self._tables = tables
        self._name = name
        self._version = version
        self._interval_s = interval_ms / 1_000
        self._began_s = began_s
        self._own_again_s = self._totals_again_s = 0.0
        self._has_subscribers = False

    def due(self, now_s: float, now_ms: int, *, connected: int, is_first: bool) -> list[SystemPublication]:
        """Returns what is to be published now; call it every second.

        Args:
            now_s: A monotonic time.
            now_ms: The brokers' time.
            connected: Devices that are connected to this process.
            is_first: True for exactly one of the gateways, which publishes for all.
        """
        had_subscribers, self._has_subscribers = self._has_subscribers, self._tables.subscriptions.has_subscribers_of_the_server
        if not self._has_subscribers or not self._interval_s:
            return []
        if not had_subscribers:
            self._own_again_s, self._totals_again_s = now_s, now_s + _TOTALS_LATER_S
        found: list[SystemPublication] = []
        uptime_s = int(now_s - self._began_s)
        if now_s >= self._own_again_s:
            self._own_again_s = now_s + self._interval_s
            found.append(self._publication(f"gateways/{self._name}/{_CONNECTED}", f"{connected}"))
            found.append(self._publication(f"gateways/{self._name}/{_UPTIME}", f"{uptime_s} seconds"))
        if now_s >= self._totals_again_s:
            self._totals_again_s = now_s + self._interval_s
            if is_first:
                all_connected = connected + sum(self._of_others(_CONNECTED, now_ms))
                found.append(self._publication("version", f"inflight {self._version}"))
                found.append(self._publication(_UPTIME, f"{max((uptime_s, *self._of_others(_UPTIME, now_ms)))} seconds"))
                found.append(self._publication(_CONNECTED, f"{all_connected}"))
        return found

    def _of_others(self, topic: str, now_ms: int) -> Iterator[int]:
        """Yields a number of each other gateway, as of its newest publication."""
        tables = self._tables
        with tables.lock:
            found = dict(tables.retained.match(f"{_ROOT}/gateways/+/{topic}", now_ms))
        found.pop(f"{_ROOT}/gateways/{self._name}/{topic}", None)
        for entry in found.values():
            number = entry.content.message.payload.decode(errors="replace").partition(" ")[0]
            if number.isascii() and number.isdigit():
                yield int(number)

    def _publication(self, topic: str, text: str) -> SystemPublication:
        named = f"{_ROOT}/{topic}".encode()
        headers = [
            (TOPIC, named),
            (QOS, b"0"),
            (RETAIN, b"true"),
            (EXPIRATION, b"%d" % (1_000 * _LIVES * self._interval_s)),
        ]
        return SystemPublication(named, text.encode(), headers)


def process_name(group_instance_id: str | None) -> str:
    """Returns the name of this process in topics: the one that it keeps over restarts, if it has such a name."""
    name = group_instance_id or f"{socket.gethostname()}-{os.getpid()}"
    return "".join("-" if character in "/+#" else character for character in name)
