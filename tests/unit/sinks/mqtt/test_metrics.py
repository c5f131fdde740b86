from prometheus_client import CollectorRegistry, generate_latest

from sinks.mqtt.metrics import GatewayCollector, GatewayCounters


def test_prometheus_reads_every_counter_under_the_gateways_prefix() -> None:
    counters = GatewayCounters(connections_open=3, resends_dropped=2)
    counters.protocol_errors[0x82] += 1
    counters.packets_received["Publish"] += 4
    registry = CollectorRegistry()
    registry.register(GatewayCollector(counters))
    text = generate_latest(registry).decode()
    assert "inflight_gateway_connections 3.0" in text
    assert "inflight_gateway_resends_dropped_total 2.0" in text
    assert 'inflight_gateway_protocol_errors_total{code="0x82"} 1.0' in text
    assert 'inflight_gateway_packets_received_total{type="Publish"} 4.0' in text
    exported = {line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert len(exported) == len(GatewayCounters.__dataclass_fields__)
