"""sinks.mqtt.access.usernames"""

import pytest

from sinks.mqtt.access.usernames import is_username


@pytest.mark.parametrize("name", ["ada", "a", "ü" * 128, "a b", "a:b", "a.b@example.com", "{username}", "*"])
def test_names_of_people_and_devices_are_user_names(name: str) -> None:
    assert is_username(name)


@pytest.mark.parametrize("name", ["", "a/b", "+", "a#", "ü" * 129, " a", "a\n", "a\x00b", "\x7f"])
def test_what_could_be_taken_for_something_else_is_none(name: str) -> None:
    assert not is_username(name)
