"""Lists dead letters and plans their replay, from the relations of the store."""

import base64
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from streaming.archive.tables import DEAD_LETTERS, LEDGER
from streaming.history.errors import NothingFound
from streaming.history.questions import checked_condition
from streaming.history.replay import ReplayOptions, with_skip
from streaming.history.sources.kafka_rows import REPLAYED
from streaming.history.store import Store

Document: TypeAlias = dict[str, Any]

_CUT: Final = "* REPLACE (payload[1:{bytes}] AS payload, payload_text[1:{bytes}] AS payload_text)"
_CANDIDATES: Final = """
WITH newest AS (
    SELECT dead_letter_id AS newest_id, row_number() OVER one_message = 1 AS is_newest FROM dead_letters
    WINDOW one_message AS (PARTITION BY client_id, message_id ORDER BY died_ms DESC, kafka_offset DESC, dead_letter_id DESC)
), replayed AS (
    SELECT DISTINCT split_part(detail, ' ', 1) AS replayed_id FROM ledger WHERE transition = '{replayed}'
)
SELECT letters.*, is_newest, replayed_id IS NOT NULL AS was_replayed
FROM (FROM dead_letters WHERE (
{condition}
)) letters JOIN newest ON newest_id = dead_letter_id LEFT JOIN replayed ON replayed_id = dead_letter_id
ORDER BY died_ms, kafka_partition, kafka_offset
"""


class DeadLetters:
    """The dead letters of a store. Methods raise what the store raises."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def listed(self, *, limit: int, where: str | None = None, payload_bytes: int | None = None) -> list[Document]:
        """Returns the newest first, at most `limit`.

        Args:
            where: A condition in SQL; None = all.
            payload_bytes: Cuts each payload; None = all of it.
        """
        columns = "*" if payload_bytes is None else _CUT.format(bytes=payload_bytes)
        order = "died_ms DESC, kafka_offset DESC"
        found = self._store.where(DEAD_LETTERS.name, where, columns=columns, order=order, limit=limit)
        return [_with_headers(letter) for letter in found]

    def one(self, dead_letter_id: str) -> Document:
        """Returns the dead letter whose id begins so, its headers as text where they are text. Raises NothingFound."""
        self._store.load(DEAD_LETTERS.name)
        query = "FROM dead_letters WHERE starts_with(dead_letter_id, ?) LIMIT 2"
        found = list(self._store.documents(query, [dead_letter_id]))
        if not found:
            raise NothingFound(f"there is no dead letter {dead_letter_id!r}: `inflight dead-letters` lists them with their ids")
        if len(found) > 1:
            raise NothingFound(f"several dead letters begin with {dead_letter_id!r}: give more of the id")
        letter = _with_headers(found[0])
        return letter | {"headers": [{"key": header["key"], "value": _as_text(header["value"])} for header in letter["headers"]]}

    def candidates(self, options: ReplayOptions) -> Iterator[Document]:
        """Yields the dead letters that match, oldest first, with `skip`: None = to be sent."""
        store, checked = self._store, checked_condition("true" if options.where is None else options.where)
        store.load(DEAD_LETTERS.name, *checked.relations)
        store.load(LEDGER.name, containing=REPLAYED.encode())
        ledger_since_ms = store.complete_since_ms(LEDGER.name)
        query = _CANDIDATES.format(replayed=REPLAYED, condition=checked.text)
        for document in store.asked(DEAD_LETTERS.name, query, options.where):
            is_newest, was_replayed = document.pop("is_newest"), document.pop("was_replayed")
            letter = _with_headers(document)
            yield with_skip(letter, options, ledger_since_ms, is_newest=is_newest, was_replayed=was_replayed)


def _with_headers(letter: Document) -> Document:
    """Returns the document with a list of headers, also of a record without any."""
    return letter | {"headers": letter["headers"] or []}


def _as_text(encoded: str | None) -> str:
    """Converts bytes in base64 to text, or to `base64:…` where they are no UTF-8."""
    try:
        return base64.b64decode(encoded or "").decode()
    except UnicodeDecodeError:
        return f"base64:{encoded}"
