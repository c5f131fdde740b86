"""Opens the page of `inflight report` after a run with losses in a real browser (Debian's chromium)."""

import html.parser
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from kafka import KafkaProducer

from inflight.demo.up import UpProcess
from tests.integration.history.history_device import AnsweringDevice
from tests.support.browser import document_of
from tests.support.driven_browser import driven_browser

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(900)]

REJECTED = 0x87
DEADLINE_S = 120.0


class Page(html.parser.HTMLParser):
    """Holds what the browser has made of the file: facts by name, plots, and everything that would be fetched."""

    def __init__(self, dom: str) -> None:
        super().__init__()
        self.facts: dict[str, str] = {}
        self.plots: list[str] = []
        self.references: list[str] = []
        self.text: list[str] = []
        self._fact: str | None = None
        self._in_value = False
        self.feed(dom)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self._fact = found.get("data-fact") or self._fact
        self._in_value = tag == "dd"
        if tag == "svg":
            self.plots.append(found.get("aria-label") or "")
        self.references += [
            value for name, value in attributes if name in ("src", "href", "xlink:href") and value and value[0] != "#"
        ]

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())
        if self._in_value and self._fact is not None:
            self.facts[self._fact] = data
            self._in_value = False


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report about: 40 messages delivered, 10 of them at the second attempt; 5 rejected; 4 dropped from a full queue."""
    directory = tmp_path_factory.mktemp("report")
    settings = (
        "archive.enabled=true",
        "retry_interval=500ms",
        "retry_mqtt5=timer",
        "archive.trigger_interval_ms=3s",
        "max_mqueue_len=3",
    )
    with UpProcess(directory / "data", *(part for setting in settings for part in ("--set", setting))) as up:
        producer = KafkaProducer(bootstrap_servers=up.kafka, acks="all")

        def send(client_id: str, number: int, topic: bytes = b"t") -> None:
            producer.send("inflight.messages", key=client_id.encode(), value=b"%d" % number, headers=[("mqtt-topic", topic)])

        def slow(topic: str, times: int) -> int | None:
            return None if topic == "slow" and times == 1 else 0

        with (
            AnsweringDevice(*up.mqtt, "good", lambda topic, times: 0) as good,
            AnsweringDevice(*up.mqtt, "slow", slow) as behind,
            AnsweringDevice(*up.mqtt, "picky <b>&", lambda topic, times: REJECTED) as picky,
        ):
            for number in range(30):
                send("good", number)
            for number in range(10):
                send("slow", number, b"slow")
            for number in range(5):
                send("picky <b>&", number)
            for number in range(7):
                send("nobody-home", number)
            producer.flush()
            good.await_count(30)
            behind.await_count(20)
            picky.await_count(5)
        producer.close()
        page, deadline = directory / "report.html", time.monotonic() + DEADLINE_S
        while True:
            command = [sys.executable, "-m", "inflight", "report", "-o", str(page), "--data-dir", str(up.data_dir)]
            subprocess.run(command, check=True, timeout=240, capture_output=True)
            if "<dd>40</dd><dt>delivered</dt>" in page.read_text(encoding="utf-8"):
                return page
            assert time.monotonic() < deadline, "the archive has not caught up"


def test_the_page_shows_the_numbers_of_the_run_and_all_plots(report: Path, tmp_path: Path) -> None:
    page = Page(document_of(tmp_path, report.as_uri()))
    assert page.facts["accepted"] == "52"
    assert page.facts["delivered"] == "40"
    assert page.facts["dead letters"] == "9"
    assert int(page.facts["sent again"]) >= 10
    assert page.facts["clients"] == "4", "three devices, and one that never came"
    assert page.plots == ["flow", "latency", "depth"]
    words = Counter(page.text)
    assert words["rejected"] == 1
    assert words["maxlen"] == 1
    assert words["picky <b>&"] >= 1, "a client id is text, whatever characters it has"
    assert page.references == [], "the page is one file"


def test_the_page_has_ink_where_the_plots_are(report: Path, tmp_path: Path) -> None:
    lengths = "[...document.querySelectorAll('polyline')].map((line) => line.getTotalLength())"
    colours = "[...document.querySelectorAll('polyline')].map((line) => getComputedStyle(line).stroke)"
    bars = "[...document.querySelectorAll('td.bar i')].map((bar) => bar.getBoundingClientRect().width)"
    with driven_browser(tmp_path) as browser:
        browser.open(report.as_uri(), width=1_240)
        found = browser.evaluate(lengths)
        assert len(found) >= 8, "three lines, three and two"
        assert max(found) > 0, "a line of one point is a dot"
        assert set(browser.evaluate(colours)) == {"rgb(0, 114, 178)", "rgb(230, 159, 0)", "rgb(213, 94, 0)"}
        assert min(browser.evaluate(bars)) > 0
