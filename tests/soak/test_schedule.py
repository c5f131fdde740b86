"""tests/soak/schedule.py: one number makes the plan, and the plan has everything in it."""

import itertools
from collections import Counter

import pytest

from tests.soak.schedule import EXPIRY_S, LEASE_S, Harm, Keeping, Part, Victim, characters, faults

HALF_AN_HOUR_S = 1_800
SHORT_S = 75


def test_a_seed_makes_one_plan() -> None:
    assert faults(7, 300) == faults(7, 300)
    assert faults(7, 300) != faults(8, 300)
    assert characters(7, 50) == characters(7, 50)
    assert characters(7, 50) != characters(8, 50)


@pytest.mark.parametrize("seed", range(20))
def test_half_an_hour_has_every_kind_of_fault_for_every_process(seed: int) -> None:
    plan = faults(seed, HALF_AN_HOUR_S)
    assert {(fault.victim, fault.harm) for fault in plan} == set(itertools.product(Victim, Harm))
    assert {fault.part for fault in plan if fault.victim is Victim.ENGINE} == set(Part)
    freezes = [fault.frozen_s for fault in plan if fault.harm is Harm.FREEZE]
    assert min(freezes) < LEASE_S / 2
    assert max(freezes) > 2 * LEASE_S
    assert 0.3 < sum(frozen_s > LEASE_S for frozen_s in freezes) / len(freezes) < 0.7


@pytest.mark.parametrize("seed", range(20))
def test_faults_of_one_process_do_not_overlap_and_end_in_time(seed: int) -> None:
    plan = faults(seed, SHORT_S)
    assert [fault.at_s for fault in plan] == sorted(fault.at_s for fault in plan)
    assert all(fault.until_s <= SHORT_S for fault in plan)
    for victim in Victim:
        own = [fault for fault in plan if fault.victim is victim]
        assert all(before.until_s < after.at_s for before, after in itertools.pairwise(own))


def test_two_gateways_are_away_at_once_now_and_then() -> None:
    of_a, of_b = ([f for f in faults(7, HALF_AN_HOUR_S) if f.victim is v] for v in (Victim.GATEWAY_A, Victim.GATEWAY_B))
    assert any(a.at_s < b.until_s and b.at_s < a.until_s for a, b in itertools.product(of_a, of_b))


def test_fifty_devices_are_of_all_kinds() -> None:
    people = characters(7, 50)
    assert len({device.client_id for device in people}) == 50
    kinds = Counter((device.keeping, device.level) for device in people)
    assert set(kinds) == {(Keeping.KEPT, 4), (Keeping.KEPT, 5), (Keeping.SHORT, 5), (Keeping.CLEAN, 4), (Keeping.CLEAN, 5)}
    assert all(device.expiry_s == EXPIRY_S for device in people if device.keeping is Keeping.SHORT)
    delays = {device.will_delay_s for device in people if device.keeping is Keeping.SHORT}
    assert 0 in delays
    assert max(delays) > EXPIRY_S, "a will that is due at the end of the session"
