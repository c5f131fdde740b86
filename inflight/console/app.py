"""The console as an ASGI application: which path shows what."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from inflight.console.guard import Form, guards
from inflight.console.live import Live
from inflight.console.overview import Overview
from inflight.console.rendering import Pages
from streaming.config.settings import Settings


def console_app(settings: Settings, live: Live) -> Starlette:
    """live: of which the first page is; it must be running."""
    console = settings.console
    form = Form()
    pages = Pages(token=form.token, kafka=settings.kafka.bootstrap_servers, data_dir=str(settings.engine.data_dir))

    def refused(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        return pages.page(request, "error.html", {"text": error.detail}, status_code=error.status_code)

    routes = [
        Route("/", Overview(pages, live, settings.engine.data_dir).show),
        Mount("/static", StaticFiles(packages=[("inflight.console", "static")])),
    ]
    return Starlette(
        routes=routes, middleware=guards((console.host, *console.names)), exception_handlers={HTTPException: refused}
    )
