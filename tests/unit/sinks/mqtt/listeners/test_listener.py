"""sinks.mqtt.listeners.listener; its sockets: tests/integration/gateway/test_listeners.py."""

import asyncio
import errno
import os
from collections import Counter

import pytest
from structlog.testing import capture_logs

from sinks.log_throttle import RefusalLog
from sinks.mqtt.limits.connection_counts import ConnectionCounts, Hosts
from sinks.mqtt.listeners import listener
from sinks.mqtt.listeners.listener import AcceptFailures, Listener
from sinks.mqtt.settings import DeviceLimits, ListenerSettings
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
        protocol, failures = asyncio.Protocol(), AcceptFailures()
        opened = Listener(ListenerSettings(port=0), lambda slot: protocol, refusals, counts, failures, timeout_s=1)
        await until(lambda: tries > 50, "it goes on trying")
        opened.close()

    with capture_logs() as lines:
        asyncio.run(test())
    (line,) = lines
    assert (line["event"], line["error"]) == ("cannot_accept", "Too many open files")
    assert "ulimit -n" in line["action"]


def test_a_gateway_says_so_even_if_nobody_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop's own server closes new sockets in silence, so the gateway tries by itself."""

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with capture_logs() as lines:
        failures = AcceptFailures()
        failures.poll()
        assert lines == []
        monkeypatch.setattr(os, "open", fail)
        for _ in range(50):
            failures.poll()
    (line,) = lines
    assert line["event"] == "cannot_accept"
    assert line["open_files_limit"] > 0
