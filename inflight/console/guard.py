"""What every request to the console has to pass, and what every answer says to the browser.

The console asks for no password, so it must not be of use to other pages that are open in the same browser:
- a request has to name a host that is ours, or a page of somebody else could have its own name point here (DNS rebinding);
- a request that another page has made is refused, unless somebody follows a link;
- a POST has to carry the token that our own pages have, and none from elsewhere can read;
- what devices have chosen, such as client ids, is text: templates escape it, and if one did not, no script of it would run.
"""

import hmac
import secrets
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = ("127.0.0.1", "localhost")
TOKEN_FIELD: Final = "token"  # noqa: S105 - the name of a field
_MAX_FORM_BYTES: Final = 65_536
_SAFE: Final = ("GET", "HEAD")
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Form:
    """The fields of POSTs, and the token that each has to carry: one for the life of the process."""

    def __init__(self) -> None:
        self.token: Final = secrets.token_urlsafe(32)

    async def read(self, request: Request) -> dict[str, str]:
        """The last value of each field. Raises HTTPException for a form that is too large, or is not from a page of ours."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MAX_FORM_BYTES:
                raise HTTPException(413, "the form is too large")
        fields = {name: values[-1] for name, values in parse_qs(body.decode(errors="replace"), keep_blank_values=True).items()}
        if not hmac.compare_digest(fields.get(TOKEN_FIELD, "").encode(), self.token.encode()):
            raise HTTPException(403, "this form is not from this console, or from before its restart: load the page again")
        return fields


def guards(names: tuple[str, ...]) -> list[Middleware]:
    """names: hosts that a request may name, beside those of loopback."""
    return [
        Middleware(_SecurityHeaders),
        Middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, *names], www_redirect=False),
        Middleware(_CrossSiteGuard),
    ]


class _SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class _CrossSiteGuard:
    """By what browsers say about where a request comes from (Fetch Metadata); what is no browser does not say it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_cross_site(scope["method"], Headers(scope=scope)):
            await PlainTextResponse("this request was made by another page", 403)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_cross_site(method: str, headers: Headers) -> bool:
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    follows_a_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return not (follows_a_link and method in _SAFE)
