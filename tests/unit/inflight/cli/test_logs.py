import logging
import subprocess
import sys
from pathlib import Path

import pytest

from inflight.cli.logs import RepeatFilter
from tests.support.waiting import DEADLINE_S

processes = pytest.mark.processes

PROGRAM = """
import logging
import structlog
from inflight.cli.logs import configure_logging

configure_logging(json={json})
for _ in range(3):
    structlog.get_logger().info("ours", word="value")
    logging.getLogger("foreign").warning("theirs")
print("goes on")
"""


def run(stderr: Path, *, json: bool) -> str:
    with stderr.open("wb") as log:
        command = [sys.executable, "-c", PROGRAM.format(json=json)]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=DEADLINE_S, check=False).stdout


@processes
@pytest.mark.parametrize("json", [False, True])
@pytest.mark.promise("full-disk")
def test_a_log_on_a_full_disk_stops_no_process(json: bool) -> None:
    assert run(Path("/dev/full"), json=json) == "goes on\n"


@processes
@pytest.mark.parametrize("json", [False, True])
def test_each_line_is_written_once(tmp_path: Path, json: bool) -> None:
    log = tmp_path / "log"
    assert run(log, json=json) == "goes on\n"
    lines = log.read_text().splitlines()
    assert [("ours" in line and "value" in line, "theirs" in line) for line in lines] == [(True, False), (False, True)] * 3


def test_a_repeated_sentence_of_a_library_is_counted_and_left_out() -> None:
    now_s = 0.0
    repeat_filter = RepeatFilter(lambda: now_s)

    def said(sentence: str, *arguments: object, logger: str = "kafka") -> str | None:
        record = logging.LogRecord(logger, logging.ERROR, "file", 1, sentence, arguments, None)
        return record.getMessage() if repeat_filter.filter(record) else None

    assert [said("%s is away", number) for number in range(5)] == ["0 is away", "1 is away", "2 is away", None, None]
    assert said("something else") == "something else"
    assert said("%s is away", 5, logger="another") == "5 is away"
    now_s = 9.9
    assert said("%s is away", 6) is None
    now_s = 10.0
    assert said("%s is away", 7) == "7 is away (and 3 like this, suppressed)"
    assert said("%s is away", 8) == "8 is away"


def test_a_sentence_with_other_numbers_in_it_is_a_repeated_one() -> None:
    """kafka-python inserts addresses and times before it logs."""
    repeat_filter = RepeatFilter(lambda: 0.0)
    sentences = [f"Task <0x7f{number:x}> ran for {number / 10}s" for number in range(10)]
    records = [logging.LogRecord("kafka", logging.WARNING, "file", 1, sentence, None, None) for sentence in sentences]
    assert [repeat_filter.filter(record) for record in records] == [True] * 3 + [False] * 7


@processes
def test_a_busy_machine_does_not_fill_the_log(tmp_path: Path) -> None:
    """kafka-python warns whenever one of its tasks had to wait for the processor."""
    code = (
        "import kafka, logging; from inflight.cli.logs import configure_logging; configure_logging();"
        "logging.getLogger('kafka.net.selector').warning('Task 1 is blocking the event loop')"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr == ""


def test_the_memory_of_the_repeat_filter_is_bounded() -> None:
    repeat_filter = RepeatFilter(lambda: 0.0)
    for number in range(5_000):
        sentence = f"sentence {'x' * number}"
        assert repeat_filter.filter(logging.LogRecord("foreign", logging.ERROR, "file", 1, sentence, None, None))
    assert len(repeat_filter._kinds) <= 1_000


@processes
def test_a_text_from_outside_stays_on_its_line(tmp_path: Path) -> None:
    program = """
import logging
import structlog
from inflight.cli.logs import configure_logging

configure_logging()
outside = "x\\x1b]0;owned\\x07\\u202e\\nforged"
structlog.get_logger().info("ours", client_id=outside, ids=[outside], raw=outside.encode())
logging.getLogger("foreign").warning("theirs %s", outside)
try:
    raise ValueError(outside)
except ValueError:
    structlog.get_logger().exception("failed")
"""
    with (tmp_path / "log").open("wb") as log:
        subprocess.run([sys.executable, "-c", program], stderr=log, timeout=DEADLINE_S, check=True)
    text = (tmp_path / "log").read_text()
    assert all(character.isprintable() or character == "\n" for character in text)
    ours, theirs, *_ = text.splitlines()
    assert ours.count(r"\u202e\nforged") == 2
    assert r"theirs x\x1b]0;owned\x07\u202e\nforged" in theirs
