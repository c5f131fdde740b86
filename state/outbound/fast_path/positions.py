"""Records which messages of `inflight.messages` the session has handled, and which of them came by the fast path first."""

from collections.abc import Iterable

from state.model import Position, partition_and_generation


class Positions:
    """Handled positions and unread adopted messages.

    Attributes:
        handled: The highest offset of this client's messages that the session has handled, by partition. The partition of the
            newest handled message is the last key. There is more than one only after partitions were added, or if a backend
            chooses partitions.
        settled: The highest handled position that is not in the queue, in the partition of `latest`; None = none is. It may be
            too high, and then no grant is given while messages wait.
        unread: Positions adopted from FastSent and not yet read as messages; a dict, because it has an order.
    """

    __slots__ = ("handled", "settled", "unread")

    def __init__(self) -> None:
        self.handled: dict[int, int] = {}
        self.settled: Position | None = None
        self.unread: dict[Position, None] = {}

    @property
    def latest(self) -> Position | None:
        """The highest handled position in the partition of the newest handled message; None = no message was handled yet."""
        partition = next(reversed(self.handled), None)
        return None if partition is None else Position(partition, self.handled[partition])

    def handled_in(self, partition: int) -> int:
        """Returns the highest handled offset; -1 = none."""
        return self.handled.get(partition, -1)

    def is_beyond(self, position: Position) -> bool:
        """Returns True if neither this message nor a later one of its partition was handled."""
        return position.offset > self.handled_in(position.partition)

    def mark_read(self, position: Position) -> bool:
        """Marks a message as read.

        A partition is read in order. So an earlier message that was not read has been deleted from Kafka, and is not waited for.

        Returns:
            False if the session has adopted the message from the fast path, so that this copy must be ignored.
        """
        if self.unread:
            adopted = position in self.unread
            if adopted and next(iter(self.unread)) == position:  # the usual case: none is earlier
                del self.unread[position]
            else:
                partition, offset = position
                self.unread = {kept: None for kept in self.unread if kept.partition != partition or kept.offset > offset}
            if adopted:
                if self.is_beyond(position):  # it was adopted without a grant
                    self._raise_to(position)
                return False
        self._raise_to(position)
        return True

    def adopt(self, position: Position, *, is_granted: bool) -> None:
        """Marks a message as adopted from FastSent before it was read.

        Args:
            is_granted: All earlier messages of the partition were handled. Without a grant some may be unread.
        """
        if is_granted:
            self._raise_to(position)
        self.unread[position] = None

    def is_missing(self, previous: Position) -> bool:
        """Returns True if the message before one of FastSent is not known. An offset of -1 stands for no message."""
        return previous.offset > self.handled_in(previous.partition) and previous not in self.unread

    def forget_recreated(self, generation: int) -> None:
        """Forgets unread messages of a topic that was deleted and created again: nobody will ever read them.

        Args:
            generation: Of the topic that is read now.
        """
        if self.unread:
            self.unread = {kept: None for kept in self.unread if partition_and_generation(kept.partition)[1] >= generation}

    def settle(self, positions: Iterable[Position]) -> None:
        """Notes that handled messages are not, or no longer, in the queue."""
        latest, settled = self.latest, self.settled
        if settled is not None and latest is not None and settled.partition != latest.partition:
            self.settled = latest
            return
        for position in positions:
            if latest is not None and position.partition == latest.partition:
                self.settled = position if self.settled is None else max(self.settled, position)

    def forget(self) -> None:
        """Forgets the handled positions, so that the next message is the first one. Nothing may be unread."""
        self.handled.clear()
        self.settled = None

    def _raise_to(self, position: Position) -> None:
        partition, offset = position
        self.handled[partition] = max(offset, self.handled.pop(partition, -1))
