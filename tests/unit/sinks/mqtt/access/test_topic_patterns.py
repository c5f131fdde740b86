import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.mqtt.access.topic_patterns import TopicPatterns, filled_in

ADA = {"username": "ada", "client_id": "ada/1"}


@pytest.mark.parametrize(
    ("pattern", "asked", "covered"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a", False),
        ("a/b", "a/b/c", False),
        ("a/b", "a/+", False),
        ("a/+", "a/b", True),
        ("a/+", "a/+", True),
        ("a/+", "a/#", False),
        ("a/+", "a/b/c", False),
        ("a/+", "a/", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "a/+/c", True),
        ("a/#", "a/#", True),
        ("a/#", "#", False),
        ("a/#", "+/b", False),
        ("#", "#", True),
        ("#", "$SYS/x", True),
        ("+/b", "a/b", True),
        ("devices/{username}/#", "devices/ada/up", True),
        ("devices/{username}/#", "devices/eve/up", False),
        ("devices/{username}/#", "devices/+/up", False),
        ("devices/{client_id}/up", "devices/ada/1/up", True),
        ("devices/d-{username}/+", "devices/d-ada/x", True),
    ],
)
def test_a_pattern_covers_what_it_always_matches(pattern: str, asked: str, covered: bool) -> None:
    assert TopicPatterns((pattern,), ADA).cover(asked) is covered


def test_one_of_several_patterns_is_enough() -> None:
    assert TopicPatterns(("a", "b"), ADA).cover("b")
    assert not TopicPatterns((), ADA).cover("b")


@pytest.mark.parametrize("wildcard", ["+", "#", "+/#"])
def test_a_wildcard_in_a_client_id_is_an_ordinary_character(wildcard: str) -> None:
    patterns = TopicPatterns(("devices/{client_id}",), {"username": "ada", "client_id": wildcard})
    assert not patterns.cover("devices/eve")
    assert not patterns.cover(f"devices/{wildcard}")


def test_a_placeholder_without_a_value_allows_nothing() -> None:
    assert not TopicPatterns(("devices/{username}/#",), {"username": "", "client_id": "c"}).cover("devices//up")


def test_a_value_is_not_filled_in_again() -> None:
    assert filled_in("{username}", {"username": "{client_id}", "client_id": "c"}) == "{client_id}"


LEVELS = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=4)


def matches(topic_filter: list[str], topic: list[str]) -> bool:
    """MQTT 5, 4.7, written down a second time."""
    if topic_filter == ["#"]:
        return True
    if not topic_filter or not topic:
        return topic_filter == topic
    return topic_filter[0] in ("+", topic[0]) and (topic_filter[1:] == ["#"] or matches(topic_filter[1:], topic[1:]))


@given(pattern=st.lists(st.sampled_from(["a", "b", "+"]), max_size=3), rest=st.booleans(), topic=LEVELS)
def test_exactly_the_matching_topics_are_covered(pattern: list[str], rest: bool, topic: list[str]) -> None:
    levels = [*pattern, "#"] if rest or not pattern else pattern
    assert TopicPatterns(("/".join(levels),), ADA).cover("/".join(topic)) is matches(levels, topic)


@given(
    pattern=st.lists(st.sampled_from(["a", "b", "+"]), max_size=3),
    asked=st.lists(st.sampled_from(["a", "b", "+"]), max_size=3),
    pattern_rest=st.booleans(),
    asked_rest=st.booleans(),
    topic=LEVELS,
)
def test_a_pattern_matches_all_that_a_covered_filter_matches(
    pattern: list[str], asked: list[str], pattern_rest: bool, asked_rest: bool, topic: list[str]
) -> None:
    allowed = [*pattern, "#"] if pattern_rest or not pattern else pattern
    wanted = [*asked, "#"] if asked_rest or not asked else asked
    if TopicPatterns(("/".join(allowed),), ADA).cover("/".join(wanted)) and matches(wanted, topic):
        assert matches(allowed, topic)
