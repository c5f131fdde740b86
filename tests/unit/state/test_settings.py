from dataclasses import fields

import pytest

from state.dead_letters.exchanges import Binding, Destination, DestinationKind
from state.dead_letters.policy import Policy
from state.setting import SETTING, Setting
from state.settings import SessionSettings


def setting_of(settings: type, name: str) -> Setting:
    """Returns what a field declares about its key."""
    (found,) = [field.metadata[SETTING] for field in fields(settings) if field.name == name]
    return found


def test_a_delivery_limit_is_at_least_one_attempt_or_none() -> None:
    check = setting_of(SessionSettings, "delivery_limit").check
    for attempts in (-1, 1, 20):
        check(attempts)
    with pytest.raises(ValueError, match="write 1 or more, or -1"):
        check(0)


def test_a_policy_names_only_reasons_of_dead_letters() -> None:
    check = setting_of(Policy, "dead_letter_reasons").check
    check("expired")
    with pytest.raises(ValueError, match="expired"):
        check("delivered")


def test_a_destination_is_read_from_its_text() -> None:
    read = setting_of(Binding, "destination").read
    assert read("client:lamp-7") == Destination(kind=DestinationKind.CLIENT, name="lamp-7")
    with pytest.raises(ValueError, match="is no destination"):
        read("lamp-7")
