from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.errors import GroupAuthorizationFailedError, KafkaError, KafkaTimeoutError, SaslAuthenticationFailedError

from inflight.cli.metrics_server import serving_metrics
from inflight.local.child_process import free_port
from inflight.local.engine_addresses import announced_engine
from inflight.status import probes
from inflight.status.measurements import ENGINE, KafkaStatus, Measurements, ProcessStatus
from inflight.status.probes import metrics_addresses, probe_kafka, probe_process
from inflight.status.sessions import totals_from_metrics
from sinks.health import STARTING, LoopHealth
from sinks.mqtt.metrics import GatewayCollector, GatewayCounters
from streaming.config.settings import Settings
from streaming.engine.metrics import EngineCollector
from streaming.engine.progress import BatchProgress
from streaming.engine.watching.health import EngineHealth
from tests.support.metrics import full_engine
from tests.unit.inflight.status.test_findings import WELL


@pytest.fixture
def gateway() -> Iterator[str]:
    """Returns the metrics address of a gateway that is starting."""
    counters = GatewayCounters(connections_open=3)
    counters.offers_refused.update(size=2, gap=5)
    with serving_metrics("127.0.0.1", 0, "gateway_port", GatewayCollector(counters), LoopHealth()) as served:
        yield served.removeprefix(" metrics=")


def test_a_probe_reads_metrics_and_unmet_conditions(gateway: str) -> None:
    seen = probe_process("gateway", gateway)
    assert seen.error is None
    assert seen.missing == (STARTING,)
    assert seen.values["inflight_gateway_connections"] == 3
    assert seen.values["inflight_gateway_offers_refused_total"] == 7, "over all reasons"
    assert seen.by_label["inflight_gateway_offers_refused_total"] == {"size": 2, "gap": 5}


def test_a_process_that_is_not_there_is_no_failure() -> None:
    seen = probe_process("gateway", f"127.0.0.1:{free_port()}")
    assert seen.error == "Connection refused"
    assert seen.values == {}
    assert probe_process("gateway", "no address").error is not None


def test_a_kafka_that_is_away_is_no_failure() -> None:
    servers = f"127.0.0.1:{free_port()}"
    seen = probe_kafka(Settings(kafka={"bootstrap_servers": servers}))
    assert seen.servers == servers
    assert seen.error is not None
    assert "\n" not in seen.error


@pytest.mark.parametrize(
    ("error", "refused"),
    [(GroupAuthorizationFailedError, True), (SaslAuthenticationFailedError, True), (KafkaTimeoutError, False)],
)
def test_a_kafka_that_refuses_is_not_one_that_is_away(
    error: type[KafkaError], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> KafkaStatus:
        raise error

    monkeypatch.setattr(probes, "_probe_kafka", fails)
    monkeypatch.setattr(probes, "first_contact", lambda servers: None)
    seen = probe_kafka(Settings())
    assert seen.error is not None
    assert seen.refused is refused


def test_metrics_addresses_come_from_configuration_and_arguments(tmp_path: Path) -> None:
    settings = Settings(engine={"data_dir": str(tmp_path)}, metrics={"engine_port": 9461, "gateway_port": 0, "host": "0.0.0.0"})
    assert metrics_addresses(settings, ["gateway=10.0.0.7:9462", "10.0.0.8:1"]) == [
        ("engine", "127.0.0.1:9461"),
        ("gateway", "10.0.0.7:9462"),
        ("process", "10.0.0.8:1"),
    ]


def test_engines_of_the_data_directory_are_found_where_they_serve(tmp_path: Path) -> None:
    settings = Settings(engine={"data_dir": str(tmp_path)}, metrics={"engine_port": 9461})
    with announced_engine(tmp_path, " metrics=0.0.0.0:40123"):
        assert metrics_addresses(settings, ["mine=127.0.0.1:40123"]) == [("engine", "127.0.0.1:40123")]
    assert metrics_addresses(settings, []) == [("engine", "127.0.0.1:9461")]


@pytest.mark.parametrize(
    ("given", "is_standby", "is_ready", "shown"),
    [
        ("engine", True, True, "standby"),
        ("standby", True, True, "standby"),
        ("standby", False, True, "engine"),
        ("standby", False, False, "standby"),
        ("engine", False, False, "engine"),
        ("process", False, True, "engine"),
    ],
)
def test_an_engine_has_the_name_of_what_it_does_now(given: str, is_standby: bool, is_ready: bool, shown: str) -> None:
    health = EngineHealth(Settings())
    health.is_standby = is_standby
    if is_ready:
        health.observe(BatchProgress(batch_id=1, started="", duration_ms=1))
    collector = EngineCollector(is_standby=lambda: is_standby)
    with serving_metrics("127.0.0.1", 0, "engine_port", collector, health) as served:
        assert probe_process(given, served.removeprefix(" metrics=")).name == shown


def test_each_process_of_a_gateway_has_its_own_metrics_address(tmp_path: Path) -> None:
    gateways = {"gateway": {"processes": 3}, "metrics": {"gateway_port": 9462, "bridge_port": 9470}}
    settings = Settings(engine={"data_dir": str(tmp_path)}, **gateways)
    assert metrics_addresses(settings, []) == [
        ("gateway-1", "127.0.0.1:9462"),
        ("gateway-2", "127.0.0.1:9463"),
        ("gateway-3", "127.0.0.1:9464"),
        ("bridge", "127.0.0.1:9470"),
    ]


def test_the_metrics_of_the_engine_have_the_sums_of_the_sessions() -> None:
    values = {sample.name: sample.value for family in full_engine().collect() for sample in family.samples}
    seen = Measurements(kafka=WELL.kafka, limits=WELL.limits, processes=(ProcessStatus(name=ENGINE, address="", values=values),))
    found = totals_from_metrics(seen.engine, now_s=lambda: 2_010.0)
    assert found is not None
    assert (found.sessions, found.connected, found.quarantined, found.inflight, found.queued) == (4, 3, 1, 2, 5)
    assert (found.oldest_s, found.age_s, found.source) == (1_009.5, 10.0, "metrics")
    assert totals_from_metrics(None) is None
    assert totals_from_metrics(ProcessStatus(name=ENGINE, address="")) is None
