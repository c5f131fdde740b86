import os
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from starlette.testclient import TestClient

from inflight.console.app import console_app
from inflight.console.live import Live
from inflight.console.worker import QueryWorker
from inflight.local.endpoints import Endpoints
from inflight.status.measurements import ENGINE, LeaseHolder, Measurements, ProcessStatus
from sinks.health import UnmetCondition
from streaming.engine.progress import PROGRESS_FILE, BatchProgress
from tests.unit.inflight.console.console_client import (
    ESCAPED,
    SCRIPT,
    FakeHistory,
    FakeObserver,
    browser,
    settings_of,
    unnamed_cells,
)
from tests.unit.inflight.status.test_findings import KAFKA, SESSIONS, WELL


def page_of(seen: Measurements, data_dir: Path, looks: int = 1) -> str:
    live = Live(FakeObserver(seen))
    for _ in range(looks):
        live.update()
    return browser(settings_of(data_dir), live).get("/").text


def write_progress(data_dir: Path, *batches: BatchProgress) -> None:
    (data_dir / PROGRESS_FILE).write_bytes(b"".join(msgspec.json.encode(batch) + b"\n" for batch in batches))


def facts(text: str) -> dict[str, str]:
    return dict(part.split("</dt><dd>") for part in text.split("<div><dt>")[1:] for part in [part.partition("</dd>")[0]])


def test_before_the_first_measurement_the_page_announces_it(tmp_path: Path) -> None:
    text = browser(settings_of(tmp_path), Live(FakeObserver())).get("/").text
    assert "Looking for Kafka" in text
    assert 'data-refresh="2000"' in text
    assert facts(text)["sessions"] == "–"


def test_the_page_shows_session_totals_and_no_findings(tmp_path: Path) -> None:
    sessions = replace(SESSIONS, sessions=100_000, connected=7, inflight=32, queued=4_500, oldest_s=150.0)
    text = page_of(replace(WELL, sessions=sessions), tmp_path)
    shown = facts(text)
    assert (shown["sessions"], shown["connected"], shown["in flight"], shown["queued"]) == ("100,000", "7", "32", "4,500")
    assert shown["oldest in flight"] == "2 min"
    assert shown["records waiting"] == "3"
    assert "Nothing is wrong that can be seen from here." in text
    assert "Sessions by the checkpoint of 1 s ago" in text


def test_the_newer_of_metrics_and_checkpoint_is_shown(tmp_path: Path) -> None:
    live, worker = (
        Live(FakeObserver(replace(WELL, sessions=replace(SESSIONS, sessions=1, source="metrics", age_s=90.0)))),
        QueryWorker(),
    )
    live.update()
    client = TestClient(console_app(settings_of(tmp_path), live, worker, FakeHistory()), base_url="http://127.0.0.1")
    assert facts(client.get("/").text)["sessions, 90 s ago"] == "1", "an old count is not shown as the present one"
    client.get("/sessions")
    worker.run_pending()
    text = client.get("/").text
    assert facts(text)["sessions"] == "100,000"
    assert "Sessions by the checkpoint of 1 s ago" in text


def test_connections_are_counted_by_gateways_and_bridges(tmp_path: Path) -> None:
    processes = (
        ProcessStatus(name="gateway", address="g:1", values={"inflight_gateway_connections": 40.0}),
        ProcessStatus(name="bridge", address="b:1", values={"inflight_bridge_devices": 2.0}),
    )
    assert facts(page_of(replace(WELL, processes=processes), tmp_path))["connected"] == "42"


def test_the_page_shows_findings_with_instructions(tmp_path: Path) -> None:
    condition = UnmetCondition(what="no micro-batch", action="look at its log")
    processes = (
        ProcessStatus(name=ENGINE, address="e:1", missing=(condition,)),
        ProcessStatus(name="gateway", address="g:1", error="refused"),
    )
    text = page_of(replace(WELL, processes=processes), tmp_path)
    assert "the engine at e:1 is not ready: no micro-batch" in text
    assert "→ look at its log" in text
    assert '<span class="state not-ready">not ready</span>' in text
    assert '<span class="state away">away</span>' in text


def test_an_unreachable_kafka_is_shown_on_the_page(tmp_path: Path) -> None:
    text = page_of(replace(WELL, kafka=replace(KAFKA, error="timed out", topics=(), holders=())), tmp_path)
    assert "does not answer: timed out" in text
    assert facts(text)["records waiting"] == "0"


def test_what_was_sent_again_is_counted_by_its_cause(tmp_path: Path) -> None:
    now = datetime.now(UTC).isoformat()
    write_progress(
        tmp_path,
        BatchProgress(batch_id=1, started="2020-01-01T00:00:00Z", duration_ms=5, resends={"retry_interval": 1_000}),
        BatchProgress(batch_id=2, started=now, duration_ms=500, resends={"retry_interval": 3, "reconnect": 2}),
        BatchProgress(batch_id=3, started=now, duration_ms=700, resends={"retry_interval": 4}),
    )
    text = page_of(WELL, tmp_path)
    assert facts(text)["resent, no answer"] == "7"
    assert facts(text)["resent, reconnect"] == "2"
    assert "<span>whole</span> <b>0.7</b>" in text


def test_texts_from_elsewhere_are_text(tmp_path: Path) -> None:
    holder = LeaseHolder(name=SCRIPT, renewed_s=4, duration_s=30)
    seen = replace(
        WELL, kafka=replace(KAFKA, holders=(holder,)), processes=(ProcessStatus(name=SCRIPT, address=SCRIPT, error=SCRIPT),)
    )
    text = page_of(seen, tmp_path)
    assert SCRIPT not in text
    assert text.count(ESCAPED) >= 3


def test_a_plot_says_time_and_values_under_the_pointer(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    write_progress(tmp_path, BatchProgress(batch_id=1, started=now.isoformat(), duration_ms=500, add_batch_ms=400))
    (reading,) = re.findall(r'<rect class="reading"[^>]*><title>([^<]*whole[^<]*)</title>', page_of(WELL, tmp_path))
    at_text, *values = reading.strip().split("\n")
    assert re.fullmatch(r"\d\d:\d\d:\d\d UTC", at_text)
    assert values == ["whole 0.5", "of these, work 0.4"], "in the order of the legend, which the script relies on"


def test_the_first_page_can_show_the_last_hour(tmp_path: Path) -> None:
    ago = (datetime.now(UTC) - timedelta(minutes=40)).isoformat()
    batches = (BatchProgress(batch_id=1, started=ago, duration_ms=500, add_batch_ms=400, resends={"reconnect": 7}),)
    live = Live(FakeObserver(WELL), read_batches=lambda: batches)
    live.update()
    client = browser(settings_of(tmp_path), live)
    hour, minutes = client.get("/", params={"last": "hour"}).text, client.get("/").text
    assert ("60 min ago" in hour, "<span>whole</span> <b>0.5</b>" in hour, facts(hour)["resent, reconnect"]) == (True, True, "7")
    assert ("5 min ago" in minutes, "<span>whole</span>" in minutes, facts(minutes)["resent, reconnect"]) == (True, False, "0")
    assert '<a href="/?last=hour" aria-current="true">Last hour</a>' in hour
    assert '<a href="/" aria-current="true">Last 5 minutes</a>' in minutes


def test_each_cell_of_the_first_page_names_its_column(tmp_path: Path) -> None:
    assert unnamed_cells(page_of(WELL, tmp_path)) == [[], []]


def test_an_unknown_page_is_not_found(tmp_path: Path) -> None:
    client: TestClient = browser(settings_of(tmp_path), Live(FakeObserver()))
    answer = client.get("/nothing")
    assert answer.status_code == 404
    assert "Not Found" in answer.text


def test_new_dead_letters_and_an_old_message_are_not_nothing(tmp_path: Path) -> None:
    observer = FakeObserver(replace(WELL, sessions=replace(SESSIONS, oldest_s=480.0)))
    live = Live(observer, dead_letters_topic="inflight.uplink")
    live.update()
    topics = tuple(replace(topic, end=topic.end + 40) for topic in KAFKA.topics)
    observer.seen = replace(observer.seen, kafka=replace(KAFKA, topics=topics))
    live.update()
    text = browser(settings_of(tmp_path), live).get("/").text
    assert "Nothing is wrong" not in text
    assert "40 new dead letters in the last" in text
    assert "a message has been in flight for 8 min" in text
    assert '<a href="/dead-letters">40</a>' in text


def test_without_a_session_there_is_a_first_step(tmp_path: Path) -> None:
    Endpoints(mqtt="10.1.2.3:18830", pids={"up": os.getpid()}).write(tmp_path)
    nothing = replace(SESSIONS, sessions=0, connected=0, inflight=0, queued=0, oldest_s=None)
    assert "mosquitto_sub -h 10.1.2.3 -p 18830 " in page_of(replace(WELL, sessions=nothing), tmp_path)
    assert "mosquitto_sub" not in page_of(WELL, tmp_path)
