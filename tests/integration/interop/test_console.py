"""Opens the console of a real `inflight up` in a real browser (Debian's chromium)."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from kafka import KafkaProducer

from inflight.demo.up import UpProcess
from inflight.local.endpoints import Endpoints
from tests.support.browser import document_of
from tests.support.driven_browser import DrivenBrowser, driven_browser
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TELEPHONE = 390
LONG = "plant_berlin-hall_3-line_12-sensor_000123-temperature_b"
PAGES = [
    "/",
    "/?last=hour",
    "/sessions",
    "/presence",
    "/trace",
    f"/trace?id=job-0-{LONG}&client={LONG}",
    f"/client?id={LONG}",
    "/topic?topic=cmd/b",
    "/dead-letters",
]
HOSTILE = "<script>document.title = 'taken'</script>"
SETTINGS = ("max_mqueue_len=5", "console.port=0", "console.allow_replay=true", "engine.nice=0")  # other tests run beside it
RUNS_FOR = "--virtual-time-budget=600000"
"""A time of the page's clock, which stops while the page waits for an answer: hundreds of polls, and seconds of real time."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """Eight messages wait for each of three clients that never came, whose queues take five."""
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    with UpProcess(tmp_path_factory.mktemp("console") / "data", *options) as running:
        producer = KafkaProducer(bootstrap_servers=running.kafka, acks="all")
        for client_id in "pump-7", HOSTILE, LONG:
            for number in range(8):
                headers = [("mqtt-topic", b"cmd/<b>"), ("mqtt-qos", b"1"), ("message-id", f"job-{number}-{client_id}".encode())]
                producer.send("inflight.messages", b"<i>%d" % number, key=client_id.encode(), headers=headers)
        producer.flush()
        producer.close()
        yield running


@pytest.fixture(scope="module")
def console(up: UpProcess) -> str:
    wait_until(lambda: Endpoints.read(up.data_dir).console, "the console")
    return Endpoints.read(up.data_dir).console.rstrip("/")


def read(directory: Path, address: str) -> str:
    """The page with its answers, as the browser has it."""
    found: list[str] = []

    def is_there() -> bool:
        found.append(document_of(directory, address))
        # Opening a page reads again, and meanwhile it shows the earlier answer.
        return found[-1].count('class="working"') == found[-1].count("What is shown was read")

    wait_until(is_there, address)
    return found[-1]


def text_of(document: str) -> str:
    """Returns the text that a person reads."""
    return html.unescape(re.sub(r"<[^>]*>", " ", document.replace("<wbr>", "")))


def opened(browser: DrivenBrowser, address: str, width: int) -> None:
    """Opens a page, and waits until it has its answers."""
    browser.open(address, width=width)
    wait_until(lambda: browser.evaluate("document.querySelectorAll('.working').length") == 0, address)


def test_the_first_page_comes_alive_by_itself(console: str, tmp_path: Path) -> None:
    document = document_of(tmp_path, f"{console}/", RUNS_FOR)
    text = text_of(document)
    assert "Looking for Kafka" not in text
    assert "inflight.messages" in text
    assert "by its consumer group" not in text, "engine and gateway serve what the page shows"
    assert document.count("<svg") == 6
    assert "<polyline" in document
    assert re.search(r'id="away"[^>]*hidden', document), "the console answers"


def test_a_queue_of_a_client_is_found_and_its_id_is_text(console: str, tmp_path: Path) -> None:
    found = read(tmp_path, f"{console}/sessions?{urlencode({'client': '<script'})}")
    assert HOSTILE in text_of(found)
    (link,) = re.findall(r'href="(/client\?[^"]*)"', found)
    document = read(tmp_path, console + html.unescape(link))
    text = text_of(document)
    assert f"<h1>{html.escape(HOSTILE, quote=False)}</h1>" in document.replace("<wbr>", "")
    assert "<title>taken" not in document
    assert [f"job-{number}-{HOSTILE}" in text for number in range(3, 8)] == [True] * 5, "these wait"
    assert "<i>7" in text
    assert "maxlen" in text, "what the ledger says of those that had to go"


def test_the_life_of_a_message_is_followed_and_says_where_it_is_from(console: str, tmp_path: Path) -> None:
    text = text_of(read(tmp_path, f"{console}/trace?{urlencode({'id': 'job-0-pump-7', 'client': 'pump-7'})}"))
    for step in "submitted", "queued", "finished", "dead letter", "maxlen":
        assert step in text
    assert "from the topics of Kafka" in text
    assert "partition" in text


def test_dead_letters_have_their_reasons(console: str, tmp_path: Path) -> None:
    text = text_of(read(tmp_path, f"{console}/dead-letters?{urlencode({'client': 'pump-7', 'reason': 'maxlen'})}"))
    for number in range(3):
        assert f"job-{number}-pump-7" in text
    assert "<i>0" in text
    assert HOSTILE not in text


def test_no_page_is_wider_than_the_screen_of_a_telephone(console: str, tmp_path: Path) -> None:
    too_wide = (
        "[...document.querySelectorAll('body *')].filter(part => part.getBoundingClientRect().right > innerWidth + 1"
        " || part.tagName !== 'INPUT' && part.scrollWidth > part.clientWidth + 1"
        " && getComputedStyle(part).overflowX !== 'visible')"
        ".map(part => part.outerHTML.slice(0, 200))"
    )
    with driven_browser(tmp_path) as browser:
        for page in PAGES:
            opened(browser, console + page, TELEPHONE)
            assert browser.evaluate("innerWidth") == TELEPHONE
            assert browser.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), page
            assert browser.evaluate(too_wide) == [], f"{page}: what is cut or has to be scrolled sideways"


def test_a_row_is_a_card_and_an_id_breaks_after_whole_words(console: str, tmp_path: Path) -> None:
    lines = (
        "(link => { const found = []; let top = null; const range = document.createRange();"
        " for (const text of [...link.childNodes].filter(node => node.nodeType === 3)) for (let at = 0; at < text.length; at++) {"
        " range.setStart(text, at); range.setEnd(text, at + 1); const box = range.getBoundingClientRect();"
        " if (top === null || box.top > top + 3) found.push(''); top = box.top; found[found.length - 1] += text.data[at]; }"
        " return found })([...document.querySelectorAll('td a')].find(link => link.textContent === " + repr(LONG) + "))"
    )
    with driven_browser(tmp_path) as browser:
        opened(browser, f"{console}/dead-letters?{urlencode({'client': LONG})}", TELEPHONE)
        assert (
            browser.evaluate("getComputedStyle(document.querySelector('td[data-label=client]'), '::before').content")
            == '"client"'
        )
        assert browser.evaluate("getComputedStyle(document.querySelector('thead')).display") == "none"
        found = browser.evaluate(lines)
    assert "".join(found) == LONG
    assert len(found) > 1
    assert all(line[-1] in "-_" for line in found[:-1]), found


def test_a_plot_says_time_and_values_under_the_pointer(console: str, tmp_path: Path) -> None:
    legend, moment = "document.querySelector('.legend').innerText", "document.querySelector('.moment').innerText"
    last = "(boxes => (box => [box.x + box.width / 2, box.y + box.height / 2])(boxes[boxes.length - 1].getBoundingClientRect()))"
    with driven_browser(tmp_path) as browser:
        browser.open(f"{console}/", width=1_280)
        wait_until(
            lambda: browser.evaluate("document.querySelectorAll('figure')[0].querySelectorAll('.reading').length > 1"), legend
        )
        assert browser.evaluate(moment) == ""
        browser.evaluate("document.getElementById('live').stays = true")
        browser.point(*browser.evaluate(f"{last}(document.querySelectorAll('figure')[0].querySelectorAll('.reading'))"))
        wait_until(lambda: re.fullmatch(r"\d\d:\d\d:\d\d UTC", browser.evaluate(moment)), moment)
        assert "messages" in browser.evaluate(legend)
        wait_until(lambda: browser.evaluate("document.getElementById('live').stays") is None, "the page is fetched again")
        assert browser.evaluate(moment), "and the pointer still reads the plot"
        browser.point(2, 2)
        wait_until(lambda: browser.evaluate(moment) == "", "the newest values again")
