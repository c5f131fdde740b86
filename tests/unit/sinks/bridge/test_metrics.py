from prometheus_client import CollectorRegistry, generate_latest

from sinks.bridge.metrics import BridgeCollector, BridgeCounters


def test_every_counter_is_exposed_and_reasons_are_labels() -> None:
    counters = BridgeCounters(devices=3, publishes_sent=7)
    counters.publishes_refused[0x97] += 2
    registry = CollectorRegistry()
    registry.register(BridgeCollector(counters))
    text = generate_latest(registry).decode()
    assert "inflight_bridge_devices 3.0" in text
    assert "inflight_bridge_publishes_sent_total 7.0" in text
    assert 'inflight_bridge_publishes_refused_total{reason="0x97"} 2.0' in text
    for name in BridgeCounters.__dataclass_fields__:
        assert f"inflight_bridge_{name}" in text
