"""Probes on the port of the metrics."""

import json
import urllib.error
import urllib.request
from collections.abc import Sequence

from inflight.cli.metrics_server import serving_metrics
from sinks.health import NO_LEASE, STARTING, UnmetCondition
from streaming.engine.metrics import EngineCollector
from tests.support.waiting import DEADLINE_S


class SetHealth:
    """Has the unmet conditions that a test sets."""

    def __init__(self) -> None:
        self.alive: list[UnmetCondition] = []
        self.ready: list[UnmetCondition] = []

    def not_alive(self) -> Sequence[UnmetCondition]:
        return self.alive

    def not_ready(self) -> Sequence[UnmetCondition]:
        return self.ready


def get(word: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{word.removeprefix(' metrics=')}{path}", timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_probe_gets_200_or_503_with_what_is_missing_and_what_to_do() -> None:
    health = SetHealth()
    with serving_metrics("127.0.0.1", 0, "engine_port", EngineCollector(), health) as served:
        assert get(served, "/healthz") == get(served, "/readyz") == (200, '{"ok":true,"missing":[]}\n')
        health.ready = [NO_LEASE, STARTING]
        assert get(served, "/healthz")[0] == 200
        status, body = get(served, "/readyz?verbose")
        assert status == 503
        assert json.loads(body) == {
            "ok": False,
            "missing": [{"what": lack.what, "action": lack.action} for lack in (NO_LEASE, STARTING)],
        }
        health.alive = [STARTING]
        assert get(served, "/healthz")[0] == 503
        status, numbers = get(served, "/metrics")
        assert status == 200
        assert "inflight_engine_micro_batches_total" in numbers
