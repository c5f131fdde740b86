"""Makes the worker's queries from the addresses of pages."""

from collections.abc import Mapping
from typing import Final

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from inflight.console.history import REASONS, History, LettersFilter, is_letter_id
from inflight.console.query_page import PageQuery
from sinks.mqtt_topics import is_shared, is_topic_filter

_EVENTS_AGE_S: Final = 2.0
SESSIONS: Final = ("sessions",)
"""Cache key of the query for the totals of all sessions."""


class PageQueries:
    """Makes the queries of each page; there is a method for each."""

    def __init__(self, history: History) -> None:
        self._history = history

    def sessions(self, query: QueryParams) -> Mapping[str, PageQuery]:
        """Uses `client`: the beginning of a client id."""
        history, prefix = self._history, query.get("client", "")
        if prefix:
            return {"clients": PageQuery(("clients", prefix), lambda _: history.clients(prefix))}
        return {"sessions": PageQuery(SESSIONS, lambda _: history.sessions())}

    def client(self, query: QueryParams) -> Mapping[str, PageQuery]:
        """Uses `id`: a whole client id. The ledger comes first, because it needs no Spark."""
        history, client_id = self._history, query.get("id", "")
        if not client_id:
            return {}
        return {
            "steps": PageQuery(("steps", client_id), lambda progress: history.steps(client_id, progress)),
            "client": PageQuery(("client", client_id), lambda _: history.client(client_id)),
        }

    def trace(self, query: QueryParams) -> Mapping[str, PageQuery]:
        """Uses `id`: a message id; and `client`: its client, or empty. Without an id the newest messages are listed."""
        history, message_id, client_id = self._history, query.get("id", "").strip(), query.get("client", "")
        if not message_id:
            return {"newest": PageQuery(("newest",), history.newest)}
        return {
            "trace": PageQuery(("trace", message_id, client_id), lambda progress: history.trace(message_id, client_id, progress))
        }

    def presence(self, query: QueryParams) -> Mapping[str, PageQuery]:
        """Uses `client`: the beginning of a client id. An open page reads again whenever it is refreshed."""
        history, prefix = self._history, query.get("client", "")
        ask = PageQuery(("presence", prefix), lambda progress: history.presence(prefix, progress), _EVENTS_AGE_S)
        return {"presence": ask}

    def topic(self, query: QueryParams) -> Mapping[str, PageQuery]:
        """Uses `topic`: a topic name or a filter."""
        history, topic = self._history, query.get("topic", "")
        if not topic:
            return {}
        if is_shared(topic) or not is_topic_filter(topic):
            raise HTTPException(400, f"{topic[:80]!r} is neither a topic name nor a filter that a subscription may have")
        return {"topic": PageQuery(("topic", topic), lambda progress: history.topic(topic, progress))}

    def dead_letters(self, query: QueryParams) -> Mapping[str, PageQuery]:
        """Uses `client` and `reason`, as in `letters_filter`."""
        history, chosen = self._history, letters_filter(query)
        return {"letters": PageQuery(("letters", chosen.client_id, chosen.reason), lambda _: history.letters(chosen))}

    def dead_letter(self, query: QueryParams) -> Mapping[str, PageQuery]:
        """Uses `id`: a dead letter; and `client`: its client, or empty."""
        history, letter_id, client_id = self._history, query.get("id", ""), query.get("client", "")
        if not letter_id:
            return {}
        return {"letter": PageQuery(("letter", letter_id, client_id), lambda _: history.letter(letter_id, client_id))}


def letters_filter(fields: Mapping[str, str]) -> LettersFilter:
    """Returns the filter that the fields describe.

    Raises:
        HTTPException: The field `reason` names no reason of dead letters, or `letter` no dead letter.
    """
    reason = fields.get("reason", "")
    if reason and reason not in REASONS:
        raise HTTPException(400, f"{reason!r} is no reason of dead letters: {', '.join(REASONS)}")
    letter_id = fields.get("letter", "")
    if letter_id and not is_letter_id(letter_id):
        raise HTTPException(400, f"{letter_id[:80]!r} is no id of a dead letter: open one from the list")
    return LettersFilter(client_id=fields.get("client", ""), reason=reason, letter_id=letter_id)
