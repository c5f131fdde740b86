"""A token endpoint (OAuth 2.0, client credentials) on loopback, with real HTTP and signed tokens."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

_ID = "test-key"


class TokenEndpoint:
    """url: where tokens are. secret: what every client has to show. asked: the client ids that have asked, with their scopes."""

    def __init__(self, *, life_s: int = 300) -> None:
        self.secret = "hunter2-secret"
        self.life_s = life_s
        self.asked: list[tuple[str, str]] = []
        self.broken: bytes | None = None
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/token"

    def token(self, user: str) -> str:
        now_s = int(time.time())
        claims = {"sub": user, "iat": now_s, "exp": now_s + self.life_s, "aud": "kafka"}
        return jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": _ID})

    def write_jwks(self, path: Path) -> Path:
        """The public key, as a broker wants it."""
        key: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        path.write_text(json.dumps({"keys": [{**key, "kid": _ID, "use": "sig", "alg": "RS256"}]}))
        return path

    @contextmanager
    def serving(self) -> Iterator["TokenEndpoint"]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def answer(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, bytes]:
        user, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if self.broken is not None:
            return 200, self.broken
        if secret != self.secret or form.get("grant_type") != ["client_credentials"]:
            return 401, b'{"error": "invalid_client"}'
        self.asked.append((user, "".join(form.get("scope", []))))
        return 200, json.dumps({"access_token": self.token(user), "expires_in": self.life_s, "token_type": "Bearer"}).encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                status, body = endpoint.answer(self.headers["Authorization"], form)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
