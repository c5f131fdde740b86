"""Builds the console as an ASGI application: its routes and pages."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from inflight.console.guard import Form, guards
from inflight.console.history import MAX_ROWS, REASONS, History
from inflight.console.live import Live
from inflight.console.overview import Overview
from inflight.console.page_queries import PageQueries
from inflight.console.query_page import QueriesOf, QueryPage
from inflight.console.rendering import Pages
from inflight.console.replaying import ReplayPages
from inflight.console.worker import QueryWorker, TooManyQueries
from inflight.local.endpoints import Endpoints
from streaming.config.settings import Settings


def console_app(settings: Settings, live: Live, worker: QueryWorker, history: History) -> Starlette:
    """Returns the application.

    Args:
        live, worker: Must be running.
    """
    console = settings.console
    form = Form()
    gateway = settings.gateway
    host, _, port = (Endpoints.read(settings.engine.data_dir).mqtt or f"{gateway.host}:{gateway.port}").rpartition(":")
    pages = Pages(token=form.token, kafka=settings.kafka.bootstrap_servers, mqtt=(host, port), max_rows=MAX_ROWS)
    page_queries = PageQueries(history)

    def query_routes(path: str, template: str, queries: QueriesOf) -> list[Route]:
        return QueryPage(pages, worker, form, template, queries, reasons=REASONS).route(path)

    def refused(request: Request, error: Exception) -> Response:
        detail, status = (error.detail, error.status_code) if isinstance(error, HTTPException) else (str(error), 503)
        return pages.page(request, "error.html", {"text": detail}, status_code=status)

    routes = [
        Route("/", Overview(pages, live, worker, settings.engine.data_dir).show),
        *query_routes("/sessions", "sessions.html", page_queries.sessions),
        *query_routes("/presence", "presence.html", page_queries.presence),
        *query_routes("/client", "client.html", page_queries.client),
        *query_routes("/trace", "trace.html", page_queries.trace),
        *query_routes("/topic", "topic.html", page_queries.topic),
        *query_routes("/dead-letters", "dead_letters.html", page_queries.dead_letters),
        *query_routes("/dead-letter", "dead_letter.html", page_queries.dead_letter),
        *ReplayPages(pages, worker, form, history, is_allowed=console.allow_replay).routes(),
        Mount("/static", StaticFiles(packages=[("inflight.console", "static")])),
    ]
    return Starlette(
        routes=routes,
        middleware=guards((console.host, *console.names)),
        exception_handlers={HTTPException: refused, TooManyQueries: refused},
    )
