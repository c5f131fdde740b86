from dataclasses import fields

import pytest

from state.dead_letters.exchanges import Binding, Destination, DestinationKind
from state.dead_letters.policy import Policy
from state.setting import SETTING, Setting
from state.settings import RecordLimits, SessionSettings


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


def test_a_record_takes_the_largest_message_with_its_headers_twice() -> None:
    RecordLimits(max_payload_bytes=100, max_headers_bytes=10, max_record_bytes=120)
    with pytest.raises(ValueError, match="max_record_bytes is 119, but a message of the largest size needs 120"):
        RecordLimits(max_payload_bytes=100, max_headers_bytes=10, max_record_bytes=119)


def test_events_may_be_larger_than_what_is_written_now() -> None:
    limits = RecordLimits(max_payload_bytes=100, max_headers_bytes=10, max_record_bytes=120)
    assert (limits.max_message_record_bytes, limits.max_event_record_bytes) == (120, 480)
