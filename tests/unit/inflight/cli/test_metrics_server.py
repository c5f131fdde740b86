import json
import socket
import urllib.error
import urllib.request
from collections.abc import Sequence

import pytest

from inflight.cli.metrics_server import serving_metrics
from inflight.local.errors import CannotListen
from sinks.bridge.metrics import BridgeCollector, BridgeCounters
from sinks.health import NO_LEASE, STARTING, LoopHealth, UnmetCondition
from sinks.mqtt.metrics import GatewayCollector, GatewayCounters
from streaming.engine.metrics import EngineCollector
from tests.support.waiting import DEADLINE_S


class SetHealth:
    """Reports the unmet conditions that a test sets."""

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


def test_a_standby_moves_from_a_port_that_is_taken() -> None:
    health = SetHealth()
    with serving_metrics("127.0.0.1", 0, "engine_port", EngineCollector(), health) as first:
        port = int(first.rpartition(":")[2])
        with serving_metrics("127.0.0.1", port, "engine_port", EngineCollector(), health, may_move=True) as second:
            assert second != first
            assert get(second, "/healthz") == get(first, "/healthz")


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


def test_each_scrape_sees_the_numbers_of_that_moment() -> None:
    gateway, bridge = GatewayCounters(), BridgeCounters()
    with (
        serving_metrics("127.0.0.1", 0, "gateway_port", GatewayCollector(gateway), LoopHealth()) as one,
        serving_metrics("127.0.0.1", 0, "bridge_port", BridgeCollector(bridge), LoopHealth()) as two,
    ):
        assert "inflight_gateway_connections 0.0" in get(one, "/metrics")[1]
        gateway.connections_open = 7
        bridge.acknowledgements[0x97] += 3
        assert "inflight_gateway_connections 7.0" in get(one, "/metrics")[1]
        assert "inflight_bridge" not in get(one, "/metrics")[1]
        assert 'inflight_bridge_acknowledgements_total{reason="0x97"} 3.0' in get(two, "/metrics")[1]
        assert "process_resident_memory_bytes" in get(two, "/metrics")[1]


def test_a_port_in_use_is_reported_with_an_instruction() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(CannotListen, match=rf"127.0.0.1:{port}.*Choose another metrics.engine_port"),
            serving_metrics("127.0.0.1", port, "engine_port", EngineCollector(), LoopHealth()),
        ):
            pass


def test_without_a_port_nothing_listens() -> None:
    with serving_metrics("127.0.0.1", -1, "gateway_port", GatewayCollector(GatewayCounters()), LoopHealth()) as served:
        assert served == ""
