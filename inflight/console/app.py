"""The console as an ASGI application: which path shows what."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from inflight.console.asking import AskingPage, Questions
from inflight.console.guard import Form, guards
from inflight.console.history import MOST_ROWS, REASONS, History
from inflight.console.live import Live
from inflight.console.overview import Overview
from inflight.console.questions import PageQuestions
from inflight.console.rendering import Pages
from inflight.console.replaying import ReplayPages
from inflight.console.worker import TooManyQuestions, Worker
from streaming.config.settings import Settings


def console_app(settings: Settings, live: Live, worker: Worker, history: History) -> Starlette:
    """live, worker: must be running."""
    console = settings.console
    form = Form()
    pages = Pages(token=form.token, kafka=settings.kafka.bootstrap_servers, most_rows=MOST_ROWS)
    questions = PageQuestions(history)

    def asking(path: str, template: str, asked: Questions) -> list[Route]:
        return AskingPage(pages, worker, form, template, asked, reasons=REASONS).route(path)

    def refused(request: Request, error: Exception) -> Response:
        detail, status = (error.detail, error.status_code) if isinstance(error, HTTPException) else (str(error), 503)
        return pages.page(request, "error.html", {"text": detail}, status_code=status)

    routes = [
        Route("/", Overview(pages, live, worker, settings.engine.data_dir).show),
        *asking("/sessions", "sessions.html", questions.sessions),
        *asking("/client", "client.html", questions.client),
        *asking("/trace", "trace.html", questions.trace),
        *asking("/dead-letters", "dead_letters.html", questions.dead_letters),
        *asking("/dead-letter", "dead_letter.html", questions.dead_letter),
        *ReplayPages(pages, worker, form, history, is_allowed=console.allow_replay).routes(),
        Mount("/static", StaticFiles(packages=[("inflight.console", "static")])),
    ]
    return Starlette(
        routes=routes,
        middleware=guards((console.host, *console.names)),
        exception_handlers={HTTPException: refused, TooManyQuestions: refused},
    )
