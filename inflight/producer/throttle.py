"""Says who waits for a throttle of all clients: publications, because nobody knows who will get them."""

from sinks.kafka.throttles import ThrottleTable
from state.model import ClientId
from state.records.throttle import EVERYBODY, Throttle


class ThrottleOfAll:
    """Says of everybody what a table says of all clients: publications wait for nobody else."""

    def __init__(self, table: ThrottleTable) -> None:
        self._table = table

    def of(self, client_id: ClientId) -> Throttle | None:
        return self._table.of(EVERYBODY)
