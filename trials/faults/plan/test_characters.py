"""trials/faults/plan/characters.py: one number makes the devices, and they are of all kinds."""

from collections import Counter

from trials.faults.plan.characters import EXPIRY_S, Keeping, characters


def test_a_seed_makes_the_same_devices() -> None:
    assert characters(7, 50) == characters(7, 50)
    assert characters(7, 50) != characters(8, 50)


def test_fifty_devices_are_of_all_kinds() -> None:
    people = characters(7, 50)
    assert len({device.client_id for device in people}) == 50
    kinds = Counter((device.keeping, device.level) for device in people)
    assert set(kinds) == {(Keeping.KEPT, 4), (Keeping.KEPT, 5), (Keeping.SHORT, 5), (Keeping.CLEAN, 4), (Keeping.CLEAN, 5)}
    assert all(device.expiry_s == EXPIRY_S for device in people if device.keeping is Keeping.SHORT)
    delays = {device.will_delay_s for device in people if device.keeping is Keeping.SHORT}
    assert 0 in delays
    assert max(delays) > EXPIRY_S, "a will that is due at the end of the session"
