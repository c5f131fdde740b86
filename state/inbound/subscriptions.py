"""Holds the subscriptions of a client, and the QoS that they grant to a message.

Where topic filters play no part, a session with many must not cost more than one with few. So they are kept as they are stored,
decoded when the first message or change needs them, and encoded only after a change. A topic is matched by building the filters
that can match it, one for each shape among the client's wildcard filters.
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from state.errors import UNDECODABLE, UnreadableRecord
from state.model import QoS, Subscription

_CACHED_FROM_BYTES: Final = 4_096
"""Subscriptions of at least this size are decoded once and cached for the next activations of the process, for a few clients."""
_CACHED_CLIENTS: Final = 16

Shape: TypeAlias = tuple[int, tuple[int, ...], bool]
"""The shape of a filter with wildcards: its number of levels without `#`, which of them are `+`, and whether `#` follows."""

SHARE_PREFIX: Final = "$share/"
"""A filter that begins with it is of a shared subscription, and matches routed messages only [MQTT-4.8.2-1]."""

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(tuple[Subscription, ...])
NO_SUBSCRIPTIONS: Final = _encoder.encode(())
_SHARE_BYTES: Final = SHARE_PREFIX.encode()


def topic_matches(topic_filter: str, topic: str) -> bool:
    """Returns True if a valid topic filter matches a topic name.

    They are compared level by level [MQTT-4.7.1-1] [MQTT-4.7.1-2] and character by character [MQTT-4.7.3-4]. A topic that begins
    with `$` only matches a filter that begins in the same way [MQTT-4.7.2-1].
    """
    if topic_filter == topic:
        return True
    return has_wildcard(topic_filter) and matching_filter(filter_shape(topic_filter), topic, topic.split("/")) == topic_filter


def has_wildcard(topic_filter: str) -> bool:
    """Returns True if the filter has a wildcard. In a valid filter `+` and `#` always are wildcards."""
    return "+" in topic_filter or "#" in topic_filter


def _has_shape(topic_filter: str) -> bool:
    """Returns True if topics are compared with the filter by its shape."""
    return has_wildcard(topic_filter) and not topic_filter.startswith(SHARE_PREFIX)


def filter_shape(topic_filter: str) -> Shape:
    levels = topic_filter.split("/")
    has_rest = levels[-1] == "#"
    if has_rest:
        levels.pop()
    return len(levels), tuple(index for index, level in enumerate(levels) if level == "+"), has_rest


def matching_filter(shape: Shape, topic: str, topic_levels: list[str]) -> str | None:
    """Returns the one filter of this shape that matches the topic; None = no filter of the shape does."""
    length, wildcards, has_rest = shape
    if length > len(topic_levels) if has_rest else length != len(topic_levels):
        return None
    if topic.startswith("$") and (length == 0 or 0 in wildcards):
        return None
    levels = topic_levels[:length]
    for index in wildcards:
        levels[index] = "+"
    if has_rest:
        levels.append("#")
    return "/".join(levels)


class _FilterIndex:
    """Subscriptions by filter, in the order of their first SUBSCRIBE, and the number of filters of each shape."""

    __slots__ = ("by_filter", "shapes")

    def __init__(self, by_filter: dict[str, Subscription], shapes: Counter[Shape]) -> None:
        self.by_filter = by_filter
        self.shapes = shapes

    @classmethod
    def of(cls, encoded: bytes) -> "_FilterIndex":
        """Decodes subscriptions.

        Raises:
            UnreadableRecord: `Subscriptions.encoded` did not write these bytes.
        """
        try:
            subscriptions = _decoder.decode(encoded)
        except UNDECODABLE as error:
            raise UnreadableRecord(f"the subscriptions of a session are damaged: {error}") from error
        by_filter = {subscription.topic_filter: subscription for subscription in subscriptions}
        return cls(by_filter, Counter(filter_shape(topic_filter) for topic_filter in by_filter if _has_shape(topic_filter)))

    def copy(self) -> "_FilterIndex":
        return _FilterIndex(self.by_filter.copy(), self.shapes.copy())


_cached_index: Final = lru_cache(maxsize=_CACHED_CLIENTS)(_FilterIndex.of)


class Subscriptions:
    """Subscriptions by topic filter. A new subscription replaces an older one with the same filter [MQTT-3.8.4-3]."""

    __slots__ = ("_encoded", "_index", "_is_shared")

    def __init__(self, encoded: bytes = NO_SUBSCRIPTIONS) -> None:
        self._encoded: bytes | None = encoded
        self._index: _FilterIndex | None = None
        self._is_shared = False

    def add(self, subscription: Subscription) -> bool:
        """Adds or replaces a subscription. Returns False if nothing changed."""
        topic_filter = subscription.topic_filter
        if self._read().by_filter.get(topic_filter) == subscription:
            return False  # many clients repeat SUBSCRIBE on every connection
        index = self._writable_index()
        if topic_filter not in index.by_filter and _has_shape(topic_filter):
            index.shapes[filter_shape(topic_filter)] += 1
        index.by_filter[topic_filter] = subscription
        return True

    def discard(self, topic_filter: str) -> bool:
        """Removes the subscription with exactly this filter [MQTT-3.10.4-1] [MQTT-3.10.4-2]. Messages in flight continue
        [MQTT-3.10.4-3].

        Returns:
            False if there was none.
        """
        if topic_filter not in self._read().by_filter:
            return False
        index = self._writable_index()
        del index.by_filter[topic_filter]
        if _has_shape(topic_filter):
            shape = filter_shape(topic_filter)
            index.shapes[shape] -= 1
            if not index.shapes[shape]:
                del index.shapes[shape]
        return True

    def clear(self) -> None:
        self._encoded, self._index, self._is_shared = NO_SUBSCRIPTIONS, None, False

    def encoded(self) -> bytes:
        """Returns the subscriptions in msgpack, in the order of their first SUBSCRIBE. Equal subscriptions give equal bytes."""
        if self._encoded is None:
            self._encoded = _encoder.encode(tuple(self._read().by_filter.values()))
        return self._encoded

    def topic_filters(self, at_most_bytes: int) -> tuple[str, ...] | None:
        """Returns the filters for a gateway; None if their total length exceeds the limit."""
        filters = tuple(self._read().by_filter)
        return filters if sum(len(topic_filter.encode()) for topic_filter in filters) <= at_most_bytes else None

    def capped_qos(self, topic: str, qos: QoS) -> QoS:
        """Returns the message's QoS, lowered to the best QoS granted by a matching subscription, if any matches [MQTT-3.3.4-2]
        [MQTT-3.8.4-8]."""
        best = self.granted_qos(topic)
        return qos if best is None else min(qos, best)

    def granted_qos(self, topic: str) -> QoS | None:
        """Returns the best QoS granted by a matching subscription; None = none matches. Shared ones do not count."""
        if self._encoded == NO_SUBSCRIPTIONS or topic.startswith(SHARE_PREFIX):
            return None
        index = self._read()
        granted = index.by_filter.get(topic)
        best = None if granted is None else granted.qos
        levels = topic.split("/")
        for shape in index.shapes:
            topic_filter = matching_filter(shape, topic, levels)
            granted = None if topic_filter is None else index.by_filter.get(topic_filter)
            if granted is not None and (best is None or granted.qos > best):
                best = granted.qos
        return best

    def get(self, topic_filter: str) -> Subscription | None:
        """Returns the subscription with exactly this filter."""
        return self._read().by_filter.get(topic_filter)

    @property
    def has_shared(self) -> bool:
        """Says that there is a shared subscription. Usually the stored bytes answer it."""
        return _SHARE_BYTES in self.encoded() and any(
            topic_filter.startswith(SHARE_PREFIX) for topic_filter in self._read().by_filter
        )

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._read().by_filter.values())

    def __bool__(self) -> bool:
        return self._encoded != NO_SUBSCRIPTIONS and len(self) > 0

    def __len__(self) -> int:
        return len(self._read().by_filter)

    def _read(self) -> _FilterIndex:
        if self._index is None:
            assert self._encoded is not None, "a changed index is already decoded"
            self._is_shared = len(self._encoded) >= _CACHED_FROM_BYTES
            self._index = _cached_index(self._encoded) if self._is_shared else _FilterIndex.of(self._encoded)
        return self._index

    def _writable_index(self) -> _FilterIndex:
        """Returns an index that no other session shares, and discards the encoded form."""
        index = self._read()
        if self._is_shared:
            index = index.copy()
        self._encoded, self._index, self._is_shared = None, index, False
        return index
