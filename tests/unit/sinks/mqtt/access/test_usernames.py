import pytest

from sinks.mqtt.access.usernames import is_username


@pytest.mark.parametrize("name", ["ada", "a", "ü" * 128, "a b", "a:b", "a.b@example.com", "{username}", "*"])
def test_names_of_people_and_devices_are_user_names(name: str) -> None:
    assert is_username(name)


@pytest.mark.parametrize("name", ["", "a/b", "+", "a#", "ü" * 129, " a", "a\n", "a\x00b", "\x7f"])
def test_a_name_with_separators_or_wildcards_is_no_user_name(name: str) -> None:
    assert not is_username(name)
