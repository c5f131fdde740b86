"""sinks.mqtt.listeners.listener: what is said when no socket can be accepted."""

import errno
import os

import pytest
from structlog.testing import capture_logs

from sinks.mqtt.listeners.listener import AcceptFailures


def fail(*_: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def test_too_many_open_files_are_said_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs() as lines:
        failures = AcceptFailures()
        failures.poll()
        assert lines == []
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", fail)
            for _ in range(50):
                failures.poll()
        failures.poll()
    (line,) = lines
    assert (line["event"], line["error"]) == ("cannot_accept", "Too many open files")
    assert "ulimit -n" in line["action"]
    assert line["open_files_limit"] > 0
