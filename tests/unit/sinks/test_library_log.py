import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from sinks.library_log import LibraryLogger

BACKEND = """
import inflight.producer.producer
from sinks.kafka.throttles import _log
_log.debug("details")
_log.warning("throttle_consumer_failed", error="no broker")
"""


@pytest.mark.processes
def test_nothing_is_written_to_the_standard_output_of_a_backend() -> None:
    done = subprocess.run([sys.executable, "-c", BACKEND], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "throttle_consumer_failed error='no broker'\n")


@pytest.fixture
def _default_levels() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("_default_levels")
def test_a_program_that_has_configured_structlog_gets_events_with_fields() -> None:
    log = LibraryLogger("a")
    with capture_logs() as lines:
        log.debug("one", number=1)
        log.info("two")
        log.warning("three")
        log.error("four", text="x")
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("one", "debug"), ("two", "info"), ("three", "warning"), ("four", "error"),
    ]  # fmt: skip
    assert (lines[0]["number"], lines[3]["text"]) == (1, "x")
