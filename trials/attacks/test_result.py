"""trials.attacks.result and what the configuration allows: what a run is judged by."""

from dataclasses import replace

from sinks.mqtt.settings import DeviceLimits, GatewaySettings
from trials.attacks.attackers import Said
from trials.attacks.gateway_watch import MIB, Usage, memory_allowed
from trials.attacks.result import Phase, Result, failures

CALM = Phase(what="undisturbed", from_s=0.0, to_s=1.0, ended_s=2.0, lost=0, gateway=Usage(MIB, 0.1), attacker=Said())
GOOD = Result(phases=[CALM], allowed_bytes=MIB, sent=1, twice=0, missing=0)


def test_a_run_is_good_without_losses_and_below_the_memory_limit() -> None:
    assert failures(GOOD) == []
    for bad in (
        replace(GOOD, missing=1),
        replace(GOOD, twice=1),
        replace(GOOD, allowed_bytes=MIB - 1),
        replace(GOOD, phases=[CALM, replace(CALM, lost=1)]),
    ):
        assert len(failures(bad)) == 1


def test_every_total_limit_is_part_of_what_a_gateway_may_take() -> None:
    limits = DeviceLimits()
    allowed = memory_allowed(GatewaySettings(device_limits=limits))
    for larger in (
        replace(limits, max_connections=30_000),
        replace(limits, max_waiting_connects=10_000),
        replace(limits, max_unanswered_connects=10_000),
        replace(limits, max_connect_bytes=1 << 20),
        replace(limits, max_total_unconfirmed_bytes=1 << 30),
        replace(limits, max_total_buffered_bytes=1 << 30),
    ):
        assert memory_allowed(GatewaySettings(device_limits=larger)) > allowed
