"""The metrics of a Producer, and their names and descriptions in docs/guides/producer.md."""

import dataclasses
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import inflight
from inflight import Attempt, Cause, ProducerSettings
from inflight.producer.metrics import ProducerMetrics, producer_metrics

DOCUMENT = (Path(__file__).parents[4] / "docs" / "guides" / "producer.md").read_text(encoding="utf-8")


def test_the_document_names_every_metric_and_no_other() -> None:
    registry = CollectorRegistry()
    metrics = ProducerMetrics(registry)
    metrics.retried(Attempt(0, 0, Cause.BROKER))
    metrics.failed(None)
    metrics.transactions.labels("committed").inc()
    counted = set(re.findall(r"^inflight_producer_(?!\w+_created)\w+", generate_latest(registry).decode(), re.MULTILINE))
    assert set(re.findall(r"`(inflight_producer_\w+)", DOCUMENT)) == counted


@pytest.mark.parametrize("cause", Cause)
def test_retries_and_final_failures_are_counted_by_cause(cause: Cause) -> None:
    registry = CollectorRegistry()
    metrics = ProducerMetrics(registry)
    metrics.retried(Attempt(0, 0, cause, "no"))
    metrics.retried(Attempt(0, 0, cause, "no", wait_ms=1_600))
    metrics.failed(cause)
    assert registry.get_sample_value("inflight_producer_retries_total", {"cause": cause.value}) == 2
    assert registry.get_sample_value("inflight_producer_failures_total", {"cause": cause.value}) == 1
    assert registry.get_sample_value("inflight_producer_throttled_seconds_total") == 1.6


def test_producers_of_one_process_count_together() -> None:
    registry = CollectorRegistry()
    assert producer_metrics(registry) is producer_metrics(registry)


def test_the_names_and_settings_in_the_document_exist() -> None:
    code = "".join(re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL))
    compile(code, "docs/guides/producer.md", "exec")
    assert set(re.findall(r"^\s*(?:from|import) .*", code, re.MULTILINE)) == {"from inflight import Producer, SendFailed"}
    spoken_of = set(re.findall(r"`(?:except )?([A-Z]\w+(?:Failed|Closed|Message|Settings|Result))\b", DOCUMENT))
    assert {"SendFailed", "SomeSendsFailed", "InvalidMessage", "ProducerClosed", "TransactionFailed"} <= spoken_of
    assert spoken_of <= set(inflight.producer.__all__)
    settings = {field.name for field in dataclasses.fields(ProducerSettings)}
    assert set(re.findall(r"`((?:max|attempt|deadline|transaction|transactional|throttle)_\w+)`", DOCUMENT)) <= settings | {
        "max_mqueue_len", "max_mqueue_bytes",
    }  # fmt: skip
