"""Finds the topic filters of a table that can match a topic.

A filter with wildcards has a shape: how many levels, which of them are `+`, and whether `#` follows. One shape and one topic give
at most one filter, and a dict says whether anybody has it. So a topic costs one lookup for each shape among the filters, however
many clients there are. A topic of n levels is compared with fewer than 3 · 2ⁿ shapes, because the others have other lengths.
"""

from collections import Counter
from collections.abc import Iterator

from state.inbound.subscriptions import Shape, filter_shape, has_wildcard, matching_filter


class WildcardShapes:
    """Counts topic filters by shape. Filters without wildcards need no shape, and are not counted."""

    __slots__ = ("_of_length", "_with_rest")

    def __init__(self) -> None:
        self._of_length: dict[int, Counter[Shape]] = {}
        """Shapes without `#` by their number of levels."""
        self._with_rest: dict[int, Counter[Shape]] = {}
        """Shapes with `#` by the number of levels before it."""

    def add(self, topic_filter: str) -> None:
        """Counts a filter. The caller adds each filter once, whoever has it."""
        if has_wildcard(topic_filter):
            shape = filter_shape(topic_filter)
            self._shapes_like(shape).setdefault(shape[0], Counter())[shape] += 1

    def discard(self, topic_filter: str) -> None:
        """Takes back one `add` of this filter."""
        if not has_wildcard(topic_filter):
            return
        shape = filter_shape(topic_filter)
        by_length = self._shapes_like(shape)
        counts = by_length[shape[0]]
        counts[shape] -= 1
        if not counts[shape]:
            del counts[shape]
        if not counts:
            del by_length[shape[0]]

    def candidates(self, topic: str) -> Iterator[str]:
        """Returns all filters that match the topic [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.2-1] and have a shape of the table.

        The first one is the topic itself. Whether anybody has a filter is for the caller to look up.
        """
        yield topic
        levels = topic.split("/")
        for shape in self._of_length.get(len(levels), ()):
            if (topic_filter := matching_filter(shape, topic, levels)) is not None:
                yield topic_filter
        for length, shapes in self._with_rest.items():
            if length <= len(levels):
                for shape in shapes:
                    if (topic_filter := matching_filter(shape, topic, levels)) is not None:
                        yield topic_filter

    def _shapes_like(self, shape: Shape) -> dict[int, Counter[Shape]]:
        return self._with_rest if shape[2] else self._of_length
