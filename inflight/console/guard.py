"""Checks every request to the console, and sets the security headers of every response.

The console has no password, so other pages in the same browser must not be able to use it:
- a request has to name one of our hosts, because another page could let its own name resolve to this address (DNS rebinding);
- a request from another page is refused, unless the user follows a link;
- a POST has to carry a token that is in our pages and that no other page can read;
- values chosen by devices, such as client ids, are text: templates escape them, and the Content-Security-Policy blocks scripts.
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
    """Reads the fields of POSTs, and checks the token, which is the same for the life of the process."""

    def __init__(self) -> None:
        self.token: Final = secrets.token_urlsafe(32)

    async def read(self, request: Request) -> dict[str, str]:
        """Returns the last value of each field.

        Raises:
            HTTPException: The form is too large, or it is not from one of our pages.
        """
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
    """Returns the middleware.

    Args:
        names: Hosts that a request may name, besides loopback.
    """
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
    """Refuses requests of other pages by Fetch Metadata headers. Clients other than browsers do not send these."""

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
