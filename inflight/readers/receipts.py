"""`Receipts`: iterates over what became of messages.

with Receipts(group="shipping") as receipts:
    for receipt in receipts:
        note(receipt.client_id, receipt.message_id, receipt.outcome)
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from inflight.keywords import checked
from inflight.readers.group_stream import Begin, GroupStream
from state.records.receipts import Receipt, decode_receipt


class Receipts(GroupStream[Receipt]):
    """Iterates over receipts, with `for` or `async for`: the outcome of each message (docs/reference/receipts.md).

    Group, commits, copies and arguments are those of `Uplink`. A copy has the same message id, client id, deaths and
    `recorded_ms`. outcomes: Only these are given out; default: all.
    """

    @checked()
    def __init__(
        self,
        bootstrap_servers: str | None = None,
        *,
        group: str,
        outcomes: Iterable[str] = (),
        begin: Begin = "earliest",
        prefix: str = "inflight",
        kafka_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._outcomes = frozenset((outcomes,) if isinstance(outcomes, str) else outcomes)
        super().__init__(f"{prefix}.receipts", bootstrap_servers, group=group, begin=begin, kafka_options=kafka_options or {})

    def _values_in(self, message: Any) -> Iterable[Receipt]:
        receipt = decode_receipt(message.value() or b"")
        return (receipt,) if not self._outcomes or receipt.outcome in self._outcomes else ()

    def _identity(self, value: Receipt) -> Hashable:
        return value.message_id, value.client_id, value.deaths, value.recorded_ms
