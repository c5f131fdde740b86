"""What the pages' addresses ask."""

from collections.abc import Mapping
from typing import Final

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from inflight.console.history import REASONS, History, LettersFilter
from inflight.console.query_page import PageQuery

SESSIONS: Final = ("sessions",)
"""The key of the question what all sessions hold."""


class PageQueries:
    """A method for each page; history: who answers."""

    def __init__(self, history: History) -> None:
        self._history = history

    def sessions(self, query: QueryParams) -> Mapping[str, PageQuery]:
        """`client`: the beginning of a client id."""
        history, prefix = self._history, query.get("client", "")
        if prefix:
            return {"clients": PageQuery(("clients", prefix), lambda _: history.clients(prefix))}
        return {"sessions": PageQuery(SESSIONS, lambda _: history.sessions())}

    def client(self, query: QueryParams) -> Mapping[str, PageQuery]:
        """`id`: all of it. The ledger is there first, because it needs no Spark."""
        history, client_id = self._history, query.get("id", "")
        if not client_id:
            return {}
        return {
            "steps": PageQuery(("steps", client_id), lambda progress: history.steps(client_id, progress)),
            "client": PageQuery(("client", client_id), lambda _: history.client(client_id)),
        }

    def trace(self, query: QueryParams) -> Mapping[str, PageQuery]:
        """`id`: of a message; `client`: to whom, or empty."""
        history, message_id, client_id = self._history, query.get("id", "").strip(), query.get("client", "")
        if not message_id:
            return {}
        return {
            "trace": PageQuery(("trace", message_id, client_id), lambda progress: history.trace(message_id, client_id, progress))
        }

    def dead_letters(self, query: QueryParams) -> Mapping[str, PageQuery]:
        """`client`, `reason`: as of `letters_filter`."""
        history, chosen = self._history, letters_filter(query)
        return {"letters": PageQuery(("letters", chosen.client_id, chosen.reason), lambda _: history.letters(chosen))}

    def dead_letter(self, query: QueryParams) -> Mapping[str, PageQuery]:
        """`id`: of a dead letter; `client`: whose, or empty."""
        history, letter_id, client_id = self._history, query.get("id", ""), query.get("client", "")
        if not letter_id:
            return {}
        return {"letter": PageQuery(("letter", letter_id, client_id), lambda _: history.letter(letter_id, client_id))}


def letters_filter(fields: Mapping[str, str]) -> LettersFilter:
    """Raises HTTPException for a reason that is none."""
    reason = fields.get("reason", "")
    if reason and reason not in REASONS:
        raise HTTPException(400, f"{reason!r} is no reason of dead letters: {', '.join(REASONS)}")
    return LettersFilter(client_id=fields.get("client", ""), reason=reason)
