"""sinks.mqtt.listeners.listener; its sockets: tests/integration/gateway/test_listeners.py."""

import asyncio
import errno
from collections import Counter

import pytest
from structlog.testing import capture_logs

from sinks.log_throttle import RefusalLog
from sinks.mqtt.limits.connection_counts import ConnectionCounts, Hosts
from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.listeners import listener
from sinks.mqtt.listeners.listener import Listener
from sinks.mqtt.listeners.settings import ListenerSettings
from tests.support.waiting import until


def test_a_gateway_without_file_descriptors_says_so_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_PAUSE_S", 0.001)

    async def test() -> None:
        tries = 0

        async def refuse(_: object) -> None:
            nonlocal tries
            tries += 1
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", refuse)
        refusals = RefusalLog(Counter(), print, "refused", "more", label="step")
        counts = ConnectionCounts(DeviceLimits(), Hosts(()), refusals)
        opened = Listener(ListenerSettings(port=0), lambda slot: asyncio.Protocol(), refusals, counts, timeout_s=1)
        await until(lambda: tries > 50, "it goes on trying")
        opened.close()

    with capture_logs() as lines:
        asyncio.run(test())
    assert [(line["event"], line["action"]) for line in lines] == [("cannot_accept", "raise the limit of open files (ulimit -n)")]
