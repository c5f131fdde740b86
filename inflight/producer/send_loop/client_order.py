"""Messages of one client reach the log in the order of submission: which sends wait for earlier ones of their client."""

from bisect import insort
from collections import deque
from collections.abc import Iterable

from inflight.producer.send_loop.send import Send
from state.model import ClientId


class ClientOrder:
    """For each throttled client its waiting sends, in order; and how many each client has in an older generation."""

    def __init__(self) -> None:
        self._waiting: dict[ClientId, deque[Send]] = {}
        self._in_older: dict[ClientId, int] = {}

    def first(self, client_id: ClientId) -> Send | None:
        """The waiting send that comes before all others of its client."""
        waiting = self._waiting.get(client_id)
        return waiting[0] if waiting else None

    def join(self, send: Send) -> None:
        if not send.waits_in_order:
            send.waits_in_order = True
            insort(self._waiting.setdefault(send.client_id, deque()), send, key=lambda waiting: waiting.number)

    def leave(self, send: Send) -> None:
        if not send.waits_in_order:
            return
        send.waits_in_order = False
        waiting = self._waiting[send.client_id]
        while waiting and not waiting[0].waits_in_order:
            waiting.popleft()
        if not waiting:
            del self._waiting[send.client_id]

    def has_older(self, client_id: ClientId) -> bool:
        """Whether messages of it are undecided in an older generation: what follows must wait for them."""
        return client_id in self._in_older

    def generation_retired(self, sends: Iterable[Send]) -> None:
        """sends: what it has not decided yet."""
        for send in sends:
            self._in_older[send.client_id] = self._in_older.get(send.client_id, 0) + 1

    def left_older(self, client_id: ClientId) -> bool:
        """One message less. True: that was the last of this client."""
        self._in_older[client_id] -= 1
        if self._in_older[client_id]:
            return False
        del self._in_older[client_id]
        return True
