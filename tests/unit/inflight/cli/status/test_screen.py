import io
from dataclasses import replace

from rich.console import Console

from inflight.cli.status.screen import screen
from inflight.status.findings import findings
from inflight.status.measurements import ClientQueue, KafkaStatus, Measurements, ProcessStatus, SessionTotals, TopicStatus
from sinks.health import UnmetCondition
from tests.unit.inflight.status.test_findings import SESSIONS, WELL


def shown(seen: Measurements, rates: dict[str, float] | None = None) -> str:
    written = io.StringIO()
    Console(width=120, file=written).print(screen(seen, findings(seen), rates or {}))
    return written.getvalue()


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_screen_shows_processes_backlogs_and_the_worst_client() -> None:
    worst = ClientQueue(client_id="pump[7]", connected=True, inflight=32, queued=1_234, queued_bytes=56_789, oldest_s=150.0)
    gateway = ProcessStatus(
        name="gateway",
        address="g:1",
        values={
            "inflight_gateway_connections": 1_500,
            "inflight_gateway_publishes_sent_total": 4_000,
            "inflight_gateway_fast_publishes_sent_total": 3_000,
        },
    )
    engine = ProcessStatus(
        name="engine",
        address="e:1",
        values={"inflight_engine_last_micro_batch_seconds": 0.25, "inflight_engine_micro_batches_total": 1_000},
    )
    seen = replace(WELL, processes=(engine, gateway), sessions=replace(SESSIONS, worst=(worst,), oldest_s=7_300.0))
    text = shown(seen, {"inflight.messages": 12.4})
    assert "1,000 micro-batches, the last one took 0.25 s" in text
    assert "1,500 devices, 4,000 PUBLISHes sent, 75% of them on the fast path" in text
    assert "lease renewed" not in text, "the gateway has a line already"
    assert ["inflight.messages", "100", "12", "3"] in lines(text)
    assert ["inflight.uplink", "7"] in lines(text)
    assert ["2", "1", "1", "1", "2.0", "h"] in lines(text)
    assert ["pump[7]", "yes", "32", "1,234", "56,789", "2", "min"] in lines(text), "no markup in what others have named"


def test_a_healthy_system_is_reported_as_such() -> None:
    assert shown(WELL).startswith("nothing is wrong that can be seen from here")


def test_each_finding_stands_above_with_what_to_do() -> None:
    seen = replace(
        WELL, processes=(ProcessStatus(name="gateway", address="g:1", missing=(UnmetCondition("no [lease]", "check [it]"),)),)
    )
    text = shown(seen)
    assert text.startswith("critical: the gateway at g:1 is not ready: no [lease]\n    → check [it]\n")
    assert ["gateway", "not", "ready", "no", "[lease]"] in lines(text)


def test_parts_that_are_down_are_shown_as_such() -> None:
    nothing = Measurements(kafka=KafkaStatus(servers="k:1", error="timed out"), limits=WELL.limits)
    text = shown(replace(nothing, processes=(ProcessStatus(name="engine", address="e:1", error="refused"),)))
    assert ["Kafka", "away", "k:1"] in lines(text)
    assert ["engine", "away", "e:1"] in lines(text)
    assert "Sessions" not in text


def test_an_engine_without_metrics_is_known_by_its_group() -> None:
    seen = replace(WELL, processes=(), kafka=replace(WELL.kafka, topics=(TopicStatus(name="t", end=1),)))
    assert "by its consumer group, which has a killed one for 15 s; no metrics" in shown(seen)


def test_the_screen_names_the_source_of_the_session_totals() -> None:
    counted = SessionTotals(
        sessions=5, connected=0, quarantined=0, inflight=0, queued=0, oldest_s=None, age_s=40.0, source="metrics"
    )
    assert "Sessions, by the metrics of 40 s ago" in shown(replace(WELL, sessions=counted))
