"""Holds the retained message of each topic, and finds those of a topic filter.

The topics form a tree of levels. A filter enters only the branches that it can match, so `a/+/b` costs as much as there are
children of `a`. Walks have a stack of their own instead of recursion, because a topic may have thousands of levels.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

Content = TypeVar("Content")
_SPARE_DEADLINES: Final = 1_000


class RetainedEntry(NamedTuple, Generic[Content]):
    """A retained message.

    Attributes:
        content: What is sent to a subscriber; the table does not look into it.
        size_bytes: Counts for the limit of retained bytes.
        expires_at_ms: Milliseconds since the epoch; None = never.
    """

    content: Content
    size_bytes: int
    expires_at_ms: int | None = None


@dataclass(slots=True)
class _Branch:
    """A level of the tree.

    Attributes:
        topic: None if no message is retained for the topic that ends here.
    """

    topic: str | None = None
    children: dict[str, "_Branch"] = field(default_factory=dict)


class RetainedTable(Generic[Content]):
    """Holds one entry for a topic. It is used by one thread.

    Expired entries count for `len` and `size_bytes` until `delete_expired`.
    """

    def __init__(self) -> None:
        self._entries: dict[str, RetainedEntry[Content]] = {}
        self._root = _Branch()
        self._deadlines: list[tuple[int, str]] = []
        """A heap of (expires_at_ms, topic). It may have deadlines of entries that were replaced or deleted."""
        self._size_bytes = 0

    def put(self, topic: str, entry: RetainedEntry[Content]) -> None:
        """Replaces the former entry of the topic.

        Args:
            topic: A valid topic name.
        """
        former = self._entries.get(topic)
        if former is None:
            branch = self._root
            for level in topic.split("/"):
                branch = branch.children.setdefault(level, _Branch())
            branch.topic = topic
        else:
            self._size_bytes -= former.size_bytes
        self._entries[topic] = entry
        self._size_bytes += entry.size_bytes
        if entry.expires_at_ms is not None:
            heappush(self._deadlines, (entry.expires_at_ms, topic))
            if len(self._deadlines) > 2 * len(self._entries) + _SPARE_DEADLINES:
                self._deadlines = [
                    (held.expires_at_ms, name) for name, held in self._entries.items() if held.expires_at_ms is not None
                ]
                heapify(self._deadlines)

    def delete(self, topic: str) -> bool:
        """Returns False if the topic had no entry."""
        entry = self._entries.pop(topic, None)
        if entry is None:
            return False
        self._size_bytes -= entry.size_bytes
        branch, walked = self._root, []
        for level in topic.split("/"):
            walked.append((branch, level))
            branch = branch.children[level]
        branch.topic = None
        for parent, level in reversed(walked):
            child = parent.children[level]
            if child.topic is not None or child.children:
                break
            del parent.children[level]
        return True

    def delete_expired(self, now_ms: int) -> list[str]:
        """Deletes expired entries.

        Returns:
            Their topics, the earliest deadline first. The caller deletes them in Kafka, too.
        """
        deleted = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            expires_at_ms, topic = heappop(self._deadlines)
            entry = self._entries.get(topic)
            if entry is not None and entry.expires_at_ms == expires_at_ms:
                self.delete(topic)
                deleted.append(topic)
        return deleted

    def get(self, topic: str, now_ms: int) -> RetainedEntry[Content] | None:
        """Returns None if there is none, or if it has expired."""
        entry = self._entries.get(topic)
        return None if entry is None or _has_expired(entry, now_ms) else entry

    def match(self, topic_filter: str, now_ms: int) -> Iterator[tuple[str, RetainedEntry[Content]]]:
        """Yields topic and entry of each retained message that the filter matches and that has not expired.

        Wildcards stand for whole levels [MQTT-4.7.1-1] [MQTT-4.7.1-2], and not for a first level with `$` [MQTT-4.7.2-1].

        Args:
            topic_filter: A valid filter of a subscription that is not shared. The table must not change between two entries.
        """
        for topic in self._matching_topics(topic_filter.split("/")):
            entry = self._entries[topic]
            if not _has_expired(entry, now_ms):
                yield topic, entry

    @property
    def size_bytes(self) -> int:
        """The sum of `size_bytes` of all entries."""
        return self._size_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def _matching_topics(self, levels: list[str]) -> Iterator[str]:
        """Walks depth first; the topics of a branch are in the order in which they were first retained."""
        branches = [(self._root, 0)]
        while branches:
            branch, depth = branches.pop()
            level = levels[depth] if depth < len(levels) else None
            if (level is None or level == "#") and branch.topic is not None:
                yield branch.topic  # `a/#` matches `a`, too
            if level == "#":
                branches += [(child, depth) for child in self._wildcard_children(branch)]
            elif level == "+":
                branches += [(child, depth + 1) for child in self._wildcard_children(branch)]
            elif level is not None and (next_branch := branch.children.get(level)) is not None:
                branches.append((next_branch, depth + 1))

    def _wildcard_children(self, branch: _Branch) -> list[_Branch]:
        """Returns the children that `+` and `#` match, in the order for a stack."""
        children = [child for name, child in branch.children.items() if branch is not self._root or not name.startswith("$")]
        children.reverse()
        return children


def _has_expired(entry: RetainedEntry[Content], now_ms: int) -> bool:
    return entry.expires_at_ms is not None and entry.expires_at_ms <= now_ms
