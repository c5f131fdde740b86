"""sinks.routing.wildcard_shapes: the filters that can match a topic."""

from itertools import product

from sinks.routing.wildcard_shapes import WildcardShapes


def shapes_of(*filters: str) -> WildcardShapes:
    shapes = WildcardShapes()
    for topic_filter in filters:
        shapes.add(topic_filter)
    return shapes


def test_the_topic_itself_is_the_first_candidate() -> None:
    assert list(shapes_of("a/b", "c").candidates("a/b")) == ["a/b"]
    assert list(shapes_of("a/+").candidates("a/b")) == ["a/b", "a/+"]


def test_a_shape_gives_the_one_filter_that_matches() -> None:
    shapes = shapes_of("x/+/y", "#", "x/#", "+/+/+/#")
    assert sorted(shapes.candidates("a/b/c")) == sorted(["a/b/c", "a/+/c", "#", "a/#", "+/+/+/#"])
    assert sorted(shapes.candidates("a")) == sorted(["a", "#", "a/#"])


def test_no_wildcard_is_tried_for_the_first_level_of_a_dollar_topic() -> None:
    shapes = shapes_of("#", "+/a", "x/+", "x/#")
    assert list(shapes.candidates("$SYS/a")) == ["$SYS/a", "$SYS/+", "$SYS/#"]


def test_a_shape_is_tried_until_its_last_filter_is_gone() -> None:
    shapes = shapes_of("a/+", "b/+", "+/b", "a/#", "b/#", "c")
    shapes.discard("c")
    shapes.discard("a/+")
    shapes.discard("b/#")
    assert list(shapes.candidates("q/r")) == ["q/r", "q/+", "+/r", "q/#"]
    for topic_filter in ("b/+", "+/b", "a/#"):
        shapes.discard(topic_filter)
    assert list(shapes.candidates("q/r")) == ["q/r"]


def test_long_filters_of_a_client_do_not_slow_down_short_topics() -> None:
    shapes = shapes_of(*("/".join(levels) for levels in product("+a", repeat=10)))
    assert list(shapes.candidates("a/b")) == ["a/b"]
    assert len(list(shapes.candidates("/".join("a" * 10)))) == 2**10
