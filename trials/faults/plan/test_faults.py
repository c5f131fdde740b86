"""trials/faults/plan/faults.py: one number makes the plan, and the plan has everything in it."""

import itertools
from collections import Counter

import pytest

from trials.faults.plan.faults import (
    BRIDGES,
    GATEWAYS,
    LEASE_S,
    ON_CONNECTIONS,
    ON_PROCESSES,
    SUFFERS,
    Fault,
    Incident,
    Kind,
    Part,
    Victim,
    incidents,
)

EVERYTHING = [(victim, kind) for victim in Victim for kind in SUFFERS[victim]]
SEEDS = pytest.mark.parametrize("seed", range(20))


def plan(seed: int, count: int, kinds: frozenset[Kind] = frozenset(Kind)) -> list[Incident]:
    return list(itertools.islice(incidents(seed, Victim, kinds), count))


def faults(seed: int, count: int) -> list[Fault]:
    return [fault for incident in plan(seed, count) for fault in incident.faults]


def test_a_seed_makes_one_plan() -> None:
    assert plan(7, 300) == plan(7, 300)
    assert plan(7, 300) != plan(8, 300)


@SEEDS
def test_everybody_suffers_everything_before_anything_comes_again(seed: int) -> None:
    dealt = [(fault.victim, fault.kind) for fault in faults(seed, len(EVERYTHING))][: len(EVERYTHING)]
    assert sorted(dealt) == sorted(EVERYTHING)


@SEEDS
def test_some_faults_are_alone_and_some_in_pairs_of_two_victims(seed: int) -> None:
    pairs = [incident.faults for incident in plan(seed, 400) if len(incident.faults) == 2]
    assert 80 < len(pairs) < 240
    assert all(first.victim is not second.victim for first, second in pairs)
    assert all(first.after_s == 0 for first, _ in pairs)
    assert {Kind.KILL, Kind.CUT} <= {second.kind for _, second in pairs}
    together = {frozenset((first.victim, second.victim)) for first, second in pairs}
    assert frozenset(GATEWAYS) in together


@SEEDS
def test_freezes_cuts_and_full_disks_last_shorter_and_longer_than_a_lease(seed: int) -> None:
    lasting = [fault.lasts_s for fault in faults(seed, 200) if fault.kind is not Kind.KILL]
    assert min(lasting) < LEASE_S / 2
    assert max(lasting) > 2 * LEASE_S
    assert 0.3 < sum(seconds > LEASE_S for seconds in lasting) / len(lasting) < 0.7
    assert {fault.lasts_s for fault in faults(seed, 200) if fault.kind is Kind.KILL} == {0.0}


def test_a_kill_hits_one_part_of_an_engine_and_a_freeze_one_or_all() -> None:
    parts = {(fault.kind, fault.part) for fault in faults(7, 400) if fault.victim is Victim.ENGINE and fault.kind in ON_PROCESSES}
    frozen = itertools.product((Kind.FREEZE, Kind.FREEZE_AND_KILL), (Part.ALL, Part.DRIVER, Part.JVM))
    assert parts == {(Kind.KILL, Part.DRIVER), (Kind.KILL, Part.JVM), *frozen}


def test_an_engine_and_the_one_that_waits_die_alone_and_together() -> None:
    found = itertools.islice(incidents(7, [Victim.ENGINE, Victim.STANDBY], {Kind.KILL}), 40)
    together = {frozenset(fault.victim for fault in incident.faults) for incident in found}
    engine, standby = frozenset((Victim.ENGINE,)), frozenset((Victim.STANDBY,))
    assert together == {engine, standby, engine | standby}


def test_engine_and_standby_suffer_together_often_and_at_once() -> None:
    found = itertools.islice(incidents(7, [*GATEWAYS, Victim.KAFKA, Victim.ENGINE, Victim.STANDBY], ON_PROCESSES), 300)
    pairs = [each.faults for each in found if {fault.victim for fault in each.faults} == {Victim.ENGINE, Victim.STANDBY}]
    assert len(pairs) > 20
    at_once = sum(second.after_s == 0 for _, second in pairs)
    assert 0.25 < at_once / len(pairs) < 0.75


def test_connections_on_both_sides_of_gateways_and_bridges_suffer() -> None:
    hit = Counter((fault.victim, fault.part) for fault in faults(7, 400) if fault.kind in ON_CONNECTIONS)
    gateways = set(itertools.product(GATEWAYS, (Part.KAFKA, Part.DEVICES)))
    bridges = set(itertools.product(BRIDGES, (Part.KAFKA, Part.BROKER)))
    assert set(hit) == gateways | bridges | {(Victim.ENGINE, Part.KAFKA), (Victim.MATCHER, Part.KAFKA)}


def test_clocks_step_forward_and_back() -> None:
    steps = [fault.by_s for fault in faults(7, 400) if fault.kind is Kind.CLOCK_STEP]
    assert {round(step) for step in steps if abs(step) > 120} == {-864_000, -7_200, 7_200, 864_000}
    corrections = [step for step in steps if abs(step) <= 120]
    assert min(corrections) < -30
    assert max(corrections) > 30


def test_only_the_kinds_and_victims_that_are_asked_for_are_there() -> None:
    few = itertools.islice(incidents(7, [Victim.KAFKA, Victim.ENGINE], {Kind.KILL}), 20)
    assert {(fault.victim, fault.kind) for incident in few for fault in incident.faults} == {
        (Victim.KAFKA, Kind.KILL),
        (Victim.ENGINE, Kind.KILL),
    }
    with pytest.raises(ValueError, match="none of these victims"):
        next(incidents(7, [Victim.KAFKA], {Kind.CLOCK_STEP}))
