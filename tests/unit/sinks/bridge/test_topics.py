"""Topic templates: filled, subscribed, matched, and refused when they are ambiguous."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.bridge.topics import CLIENT_ID, MESSAGE_ID, TOPIC, TopicTemplate, is_addressable

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0#+"), min_size=1)
levels = st.text(st.characters(codec="utf-8", exclude_characters="\0#+/"), min_size=1)


def template(text: str) -> TopicTemplate:
    return TopicTemplate(text, required=(CLIENT_ID, TOPIC), optional=(MESSAGE_ID,))


@given(client_id=levels, topic=texts)
def test_a_template_matches_what_it_fills(client_id: str, topic: str) -> None:
    made = template("a/{client_id}/b/{topic}")
    assert made.match(made.fill(client_id, topic)) == (client_id, topic)


@given(message_id=st.text(min_size=1, max_size=50))
def test_a_message_id_is_always_one_level_without_wildcards(message_id: str) -> None:
    topic = template("d/{client_id}/{message_id}/{topic}").fill("c", "t", message_id.encode(errors="ignore").decode())
    assert topic.count("/") == 3
    assert "+" not in topic
    assert "#" not in topic


def test_the_filter_has_wildcards_where_the_template_has_names() -> None:
    assert template("d/{client_id}/m/{message_id}/{topic}").filter == "d/+/m/+/#"


def test_placeholders_inside_values_are_not_replaced() -> None:
    assert template("{client_id}/{message_id}/{topic}").fill("{topic}", "{client_id}", "x") == "{topic}/x/{client_id}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("devices/{client_id}", "{topic} must stand in it once"),
        ("devices/{topic}", "{client_id} must stand in it once"),
        ("{client_id}/{client_id}/{topic}", "{client_id} must stand in it once"),
        ("d/{client_id}/{topic}/x", "may only stand at the end"),
        ("d-{client_id}/{topic}", "must be a whole level"),
        ("d/{client_id}/+/{topic}", "without the wildcards"),
        ("d/{client_id}/{nonsense}/{topic}", "does not belong here"),
        ("d/{client_id}/{message_id}/{message_id}/{topic}", "does not belong here"),
    ],
)
def test_a_template_that_cannot_work_is_refused_with_what_is_allowed(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        template(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(("client_id", "expected"), [("a", True), ("a/b", False), ("", False), ("a+", False), ("#", False)])
def test_only_a_level_of_a_topic_is_addressable(client_id: str, expected: bool) -> None:
    assert is_addressable(client_id) is expected
