"""sinks.routing.retained_table: retained messages by topic, and those of a filter."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.matcher import MQTTMatcher

from sinks.routing.retained_table import RetainedEntry, RetainedTable

NAMES = ("", "a", "$x")
TOPICS = ["/".join(levels) for length in (1, 2, 3) for levels in product(NAMES, repeat=length) if any(levels) or length > 1]
FILTERS = [
    "/".join(levels)
    for length in (1, 2, 3, 4)
    for levels in product((*NAMES, "+", "#"), repeat=length)
    if "#" not in levels[:-1] and (any(levels) or length > 1)
]


def a_table(*topics: str) -> RetainedTable[str]:
    table = RetainedTable[str]()
    for topic in topics:
        table.put(topic, RetainedEntry(f"content of {topic}", 10))
    return table


def matching(table: RetainedTable[str], topic_filter: str, now_ms: int = 0) -> list[str]:
    found = dict(table.match(topic_filter, now_ms))
    assert all(entry.content == f"content of {topic}" for topic, entry in found.items())
    return list(found)


def test_the_last_entry_of_a_topic_holds() -> None:
    table = a_table("a/b")
    table.put("a/b", RetainedEntry("new", 3))
    assert table.get("a/b", 0) == RetainedEntry("new", 3)
    assert list(table.match("a/+", 0)) == [("a/b", RetainedEntry("new", 3))]
    assert (len(table), table.size_bytes) == (1, 3)


def test_a_deleted_entry_is_gone_and_frees_its_bytes() -> None:
    table = a_table("a", "a/b", "a/b/c", "d")
    assert table.delete("a/b")
    assert not table.delete("a/b")
    assert not table.delete("nobody's")
    assert (len(table), table.size_bytes) == (3, 30)
    assert matching(table, "#") == ["a", "a/b/c", "d"]
    assert table.get("a/b", 0) is None
    for topic in ("a", "a/b/c", "d"):
        assert table.delete(topic)
    assert matching(table, "#") == []
    assert (len(table), table.size_bytes) == (0, 0)
    assert table._root.children == {}


def test_expired_entries_are_left_out() -> None:
    table = a_table("a")
    table.put("b", RetainedEntry("content of b", 10, expires_at_ms=1_000))
    assert matching(table, "#", now_ms=999) == ["a", "b"]
    assert matching(table, "#", now_ms=1_000) == matching(table, "+", now_ms=1_000) == ["a"]
    assert table.get("b", 999) is not None
    assert table.get("b", 1_000) is None
    assert len(table) == 2


def test_expired_entries_are_deleted_in_the_order_of_their_deadlines() -> None:
    table = RetainedTable[str]()
    for topic, expires_at_ms in (("c", 3), ("a", 1), ("never", None), ("b", 2), ("later", 9), ("replaced", 2), ("deleted", 2)):
        table.put(topic, RetainedEntry("", 1, expires_at_ms))
    table.put("replaced", RetainedEntry("", 1, 8))
    table.delete("deleted")
    assert table.delete_expired(0) == []
    assert table.delete_expired(3) == ["a", "b", "c"]
    assert table.delete_expired(3) == []
    assert sorted(topic for topic, _ in table.match("#", 3)) == ["later", "never", "replaced"]
    assert table.size_bytes == 3
    assert table.delete_expired(9) == ["replaced", "later"]


def test_deadlines_of_replaced_entries_do_not_pile_up() -> None:
    table = a_table("never")
    for expires_at_ms in range(1, 5_001):
        table.put("often", RetainedEntry("", 1, expires_at_ms))
    assert len(table._deadlines) < 2_000
    assert table.delete_expired(4_999) == []
    assert table.delete_expired(5_000) == ["often"]


def test_wildcards_do_not_match_a_first_level_with_a_dollar_sign() -> None:
    table = a_table("$SYS/uptime", "$SYS", "x/$SYS")
    assert matching(table, "#") == matching(table, "+/+") == ["x/$SYS"]
    assert matching(table, "$SYS/#") == ["$SYS", "$SYS/uptime"]
    assert matching(table, "$SYS/+") == ["$SYS/uptime"]


def test_a_filter_with_a_plus_enters_only_what_it_can_match() -> None:
    """Branches that must not be entered are replaced by something that cannot be."""
    table = a_table("a/1/b", "a/2/b", "a/2/c", "other/1/b")
    table._root.children["other"] = None  # type: ignore[assignment]
    assert matching(table, "a/+/b") == ["a/1/b", "a/2/b"]
    assert matching(table, "a/2/c") == ["a/2/c"]


def test_a_topic_may_have_thousands_of_levels() -> None:
    topic = "/" * 30_000
    table = a_table(topic)
    assert matching(table, "#") == matching(table, topic) == matching(table, "/" * 29_999 + "/+") == [topic]
    assert table.delete(topic)


def paho_matches(topic_filter: str, topic: str) -> bool:
    matcher = MQTTMatcher()
    matcher[topic_filter] = True
    return any(matcher.iter_match(topic))


def test_every_short_filter_finds_what_pahos_matcher_says() -> None:
    table = a_table(*TOPICS)
    for topic_filter in FILTERS:
        found = matching(table, topic_filter)
        assert sorted(found) == sorted(topic for topic in TOPICS if paho_matches(topic_filter, topic)), topic_filter


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(TOPICS)), max_size=30), st.sampled_from(FILTERS))
def test_after_any_changes_a_filter_finds_what_is_left(changes: list[tuple[bool, str]], topic_filter: str) -> None:
    table, left = RetainedTable[str](), set[str]()
    for is_put, topic in changes:
        if is_put:
            table.put(topic, RetainedEntry(f"content of {topic}", 10))
            left.add(topic)
        else:
            assert table.delete(topic) == (topic in left)
            left.discard(topic)
    assert sorted(matching(table, topic_filter)) == sorted(topic for topic in left if paho_matches(topic_filter, topic))
    assert (len(table), table.size_bytes) == (len(left), 10 * len(left))
