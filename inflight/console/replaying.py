"""Sends dead letters again in two steps: a dry run lists them, and then exactly these are sent, if the configuration
allows it."""

import secrets
from typing import Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from inflight.console.guard import Form
from inflight.console.history import MAX_REPLAYED, MAX_ROWS, History, ReplayPlan
from inflight.console.page_queries import letters_filter
from inflight.console.query_page import SEE_OTHER, refresh_ms
from inflight.console.rendering import Pages
from inflight.console.worker import Key, QueryWorker
from streaming.history.operator_requests import this_user

PATH: Final = "/replay"
_NEVER_EXPIRES_S: Final = float("inf")


class ReplayPages:
    """The pages of a replay.

    Args:
        is_allowed: False = dry runs only.
    """

    def __init__(self, pages: Pages, worker: QueryWorker, form: Form, history: History, *, is_allowed: bool) -> None:
        self._pages = pages
        self._worker = worker
        self._form = form
        self._history = history
        self._is_allowed = is_allowed

    def routes(self) -> list[Route]:
        return [
            Route(PATH, self.show, methods=["GET"]),
            Route(PATH, self.dry_run, methods=["POST"]),
            Route(f"{PATH}/send", self.send, methods=["POST"]),
        ]

    async def dry_run(self, request: Request) -> Response:
        chosen = letters_filter(await self._form.read(request))
        plan_id = secrets.token_urlsafe(12)
        self._worker.ask(_plan_key(plan_id), lambda _: self._history.plan(chosen))
        return _shown(plan_id)

    async def send(self, request: Request) -> Response:
        """Sends the dead letters of a dry run. Repeating it has no effect."""
        plan_id = (await self._form.read(request)).get("id", "")
        if not self._is_allowed:
            raise HTTPException(403, "the console may not send anything: start it with --allow-replay, or use `inflight replay`")
        answer = self._worker.get(_plan_key(plan_id))
        if answer is None or not isinstance(plan := answer.value, ReplayPlan):
            raise HTTPException(409, "there is no such dry run, or it is too old: make another one")
        by = f"{this_user()}, with the console, for {'an unknown address' if request.client is None else request.client.host}"
        self._worker.ask(
            _sent_key(plan_id), lambda progress: self._history.replay(plan, progress, by=by), max_age_s=_NEVER_EXPIRES_S
        )
        return _shown(plan_id)

    def show(self, request: Request) -> Response:
        plan_id = request.query_params.get("id", "")
        plan, sent = self._worker.get(_plan_key(plan_id)), self._worker.get(_sent_key(plan_id))
        if plan is None:
            raise HTTPException(404, "there is no such dry run, or it is too old: make another one")
        values = {
            "plan_id": plan_id,
            "plan": plan,
            "sent": sent,
            "allowed": self._is_allowed,
            "max_shown": MAX_ROWS,
            "max_replayed": MAX_REPLAYED,
        }
        newest = plan if sent is None else sent
        return self._pages.page(request, "replay.html", values, refresh_ms=refresh_ms(newest) if newest.is_pending else 0)


def _plan_key(plan_id: str) -> Key:
    return "plan", plan_id


def _sent_key(plan_id: str) -> Key:
    return "sent", plan_id


def _shown(plan_id: str) -> Response:
    return RedirectResponse(f"{PATH}?{urlencode({'id': plan_id})}", SEE_OTHER)
