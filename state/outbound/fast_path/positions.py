"""How far the session has come in `inflight.messages`, and what of it came by the fast path first."""

from state.model import Position


class Positions:
    """handled: the highest offset of this client's messages that the session has handled, by partition; the partition of the
    message that was handled last is the last one. There is more than one only after partitions were added, or where a backend
    chooses partitions itself.

    unread: adopted from FastSent, and not yet read as messages; a dict, because it has an order.
    """

    __slots__ = ("handled", "unread")

    def __init__(self) -> None:
        self.handled: dict[int, int] = {}
        self.unread: dict[Position, None] = {}

    @property
    def latest(self) -> Position | None:
        """The highest position in the partition of the message that was handled last; None = no message was handled yet."""
        partition = next(reversed(self.handled), None)
        return None if partition is None else Position(partition, self.handled[partition])

    def handled_in(self, partition: int) -> int:
        """The highest offset, -1 = none."""
        return self.handled.get(partition, -1)

    def is_beyond(self, position: Position) -> bool:
        """Nothing as far as this was handled."""
        return position.offset > self.handled_in(position.partition)

    def mark_read(self, position: Position) -> bool:
        """A message was read. False: it has been adopted before, and is to be ignored.

        A partition is read in order: what lies before this message and was not read is not in Kafka any more.
        """
        if self.unread:
            adopted = position in self.unread
            partition, offset = position
            self.unread = {kept: None for kept in self.unread if kept.partition != partition or kept.offset > offset}
            if adopted:
                return False
        self._raise_to(position)
        return True

    def adopt(self, position: Position) -> None:
        """A message was taken from FastSent before it was read."""
        self._raise_to(position)
        self.unread[position] = None

    def forget(self) -> None:
        """The session is forgotten; its next message is its first. Nothing may be unread."""
        self.handled.clear()

    def _raise_to(self, position: Position) -> None:
        partition, offset = position
        self.handled[partition] = max(offset, self.handled.pop(partition, -1))
