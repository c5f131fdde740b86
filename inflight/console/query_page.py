"""Serves pages that wait for results of the worker.

Who opens a page gets a fresh result: an older one is shown with its age until the new one is there. An open page refreshes
itself, and reads again after a minute, or sooner if its query says so. POST reads again at once.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from inflight.console.guard import Form
from inflight.console.rendering import Pages
from inflight.console.worker import Key, Progress, QueryResult, QueryWorker

REFRESH_HEADER: Final = "x-inflight-refresh"
"""Has a request of `console.js` for a page that is open already."""
_OPENED_AGE_S: Final = 5.0
_REFRESHED_AGE_S: Final = 60.0
_PENDING_REFRESH_MS: Final = 1_000
_AGE_REFRESH_MS: Final = 5_000
SEE_OTHER: Final = 303


class PageQuery(NamedTuple):
    """A query for the worker.

    Attributes:
        key: Equal for equal queries; the first part says which kind.
        ask: Runs the query.
        refreshed_age_s: A page that is open already reads again at this age of the result.
    """

    key: Key
    ask: Callable[[Progress], object]
    refreshed_age_s: float = _REFRESHED_AGE_S


QueriesOf: TypeAlias = Callable[[QueryParams], Mapping[str, PageQuery]]
"""Returns the queries of a page by the names that its template uses; empty if the page has no input yet."""


class QueryPage:
    """A page that shows the results of queries, which the console's worker runs.

    Args:
        template: Gets `query`, the results as `answers`, and `values`.
        queries: Makes the page's queries from the parameters of its URL.
    """

    def __init__(
        self, pages: Pages, worker: QueryWorker, form: Form, template: str, queries: QueriesOf, **values: object
    ) -> None:
        self._pages = pages
        self._worker = worker
        self._form = form
        self._template = template
        self._questions = queries
        self._values = values

    def route(self, path: str) -> list[Route]:
        return [Route(path, self.show, methods=["GET"]), Route(path, self.read_again, methods=["POST"])]

    def show(self, request: Request) -> Response:
        page_queries = self._questions(request.query_params)
        is_open = REFRESH_HEADER in request.headers
        answers = {
            name: self._worker.ask(
                page_query.key, page_query.ask, max_age_s=page_query.refreshed_age_s if is_open else _OPENED_AGE_S
            )
            for name, page_query in page_queries.items()
        }
        values: dict[str, Any] = {"query": request.query_params, "answers": answers, **self._values}
        return self._pages.page(request, self._template, values, refresh_ms=refresh_ms(*answers.values()))

    async def read_again(self, request: Request) -> Response:
        await self._form.read(request)
        for page_query in self._questions(request.query_params).values():
            self._worker.forget(page_query.key)
        query = request.url.query
        return RedirectResponse(f"{request.url.path}?{query}" if query else request.url.path, SEE_OTHER)


def refresh_ms(*answers: QueryResult[Any]) -> int:
    """Returns when the browser should fetch a page with these results again; 0 = never. A finished page is refreshed to show its
    age."""
    if any(answer.is_pending for answer in answers):
        return _PENDING_REFRESH_MS
    return _AGE_REFRESH_MS if answers else 0
