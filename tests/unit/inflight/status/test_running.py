from dataclasses import replace

from inflight.status.measurements import LeaseHolder, ProcessStatus
from inflight.status.running import ProcessState, running
from tests.unit.inflight.status.test_findings import KAFKA, WELL

GATEWAY = ProcessStatus(name="gateway", address="g:1", values={"inflight_gateway_connections": 2.0})


def lease(name: str, renewed_s: float = 1.0, begun_s: float | None = None) -> LeaseHolder:
    return LeaseHolder(name=name, renewed_s=renewed_s, duration_s=30.0, begun_s=begun_s)


def rows(*found: ProcessStatus | LeaseHolder) -> list[tuple[str, ProcessState]]:
    holders = tuple(item for item in found if isinstance(item, LeaseHolder))
    processes = tuple(item for item in found if isinstance(item, ProcessStatus))
    seen = replace(WELL, kafka=replace(KAFKA, holders=holders), processes=processes)
    return [(process.name, process.state) for process in running(seen)][2:]  # without Kafka and the engine


def test_a_gateway_with_metrics_and_a_lease_is_one_process() -> None:
    assert rows(GATEWAY, lease("gateway 127.0.0.1:1883")) == [("gateway", ProcessState.WORKS)]


def test_gateways_without_metrics_are_listed_by_their_leases() -> None:
    assert rows(lease("gateway a:1"), lease("bridge b")) == [
        ("gateway a:1", ProcessState.WORKS),
        ("bridge b", ProcessState.WORKS),
    ]


def test_a_holder_that_lacks_something_does_not_work() -> None:
    assert rows(replace(lease("bridge b"), lacks="no broker")) == [("bridge b", ProcessState.NOT_READY)]


def engines(*found: ProcessStatus) -> list[tuple[str, ProcessState]]:
    return [(process.name, process.state) for process in running(replace(WELL, processes=found))][1:-1]


def test_an_engine_that_is_away_does_not_work_by_its_group() -> None:
    away = ProcessStatus(name="engine", address="e:1", error="refused")
    assert engines(away) == [("engine", ProcessState.AWAY)]
    assert engines() == [("engine", ProcessState.WORKS)], "no metrics are known of it"


def test_an_engine_that_waits_is_shown_as_waiting() -> None:
    engine, standby = ProcessStatus(name="engine", address="e:1"), ProcessStatus(name="standby", address="e:2")
    assert engines(engine, standby) == [("engine", ProcessState.WORKS), ("standby", ProcessState.WAITS)]
    assert engines(engine, replace(standby, error="refused"))[-1] == ("standby", ProcessState.AWAY)


def test_more_leases_than_gateways_with_metrics_are_summed_up() -> None:
    found = rows(GATEWAY, lease("gateway a:1"), lease("gateway b:1"), lease("gateway c:1"))
    assert found == [("gateway", ProcessState.WORKS), ("2 more gateways", ProcessState.WORKS)]


def test_a_lease_that_nobody_renews_does_not_work() -> None:
    assert rows(lease("gateway a:1", 16.0), lease("gateway b:1", 46.0)) == [
        ("gateway b:1", ProcessState.AWAY),
        ("gateway a:1", ProcessState.NOT_READY),
    ]


def test_the_lease_of_a_gateway_that_was_started_again_is_left_out() -> None:
    assert rows(lease("gateway a:1", 20.0), lease("gateway a:1")) == [("gateway a:1", ProcessState.WORKS)]
    assert rows(GATEWAY, lease("gateway a:1", 20.0), lease("gateway a:1")) == [("gateway", ProcessState.WORKS)]


def test_a_gateway_that_was_killed_is_counted_once_when_it_is_back() -> None:
    killed, back = lease("gateway a:1", 7.0, 600.0), lease("gateway a:1", 1.0, 3.0)
    assert rows(GATEWAY, killed, back) == [("gateway", ProcessState.WORKS)]
    assert rows(killed, back) == [("gateway a:1", ProcessState.WORKS)]


def test_processes_that_share_a_port_are_all_counted() -> None:
    began_together = lease("gateway a:1", 4.0, 4.0), lease("gateway a:1", 3.5, 3.5)
    assert rows(*began_together) == [("gateway a:1", ProcessState.WORKS)] * 2
    in_turn = lease("gateway a:1", 4.9, 600.0), lease("gateway a:1", 0.1, 4.0)
    assert rows(GATEWAY, *in_turn) == [("gateway", ProcessState.WORKS), ("1 more gateway", ProcessState.WORKS)]


def test_a_killed_gateway_does_not_work_by_its_lease_as_well() -> None:
    away = replace(GATEWAY, error="refused", values={})
    assert rows(away, lease("gateway a:1", 4.0)) == [("gateway", ProcessState.AWAY)]
    assert rows(replace(away, name="gateway-2"), lease("gateway a:1", 4.0)) == [("gateway-2", ProcessState.AWAY)]
