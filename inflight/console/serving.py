"""Serves the application until SIGINT or SIGTERM."""

import signal
import socket
from collections.abc import Callable
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from inflight.local.child_process import free_port
from inflight.local.errors import CannotListen

_SHUTDOWN_S: Final = 2


def serve(app: ASGIApp, host: str, port: int, *, on_ready: Callable[[str], None]) -> None:
    """Serves the application.

    Args:
        port: 0 = any free one.
        on_ready: Called with the address of the page.

    Raises:
        CannotListen: The port is in use or not allowed.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # A port that stays free over a restart; with IPv6, for which none can be determined, the kernel chooses.
        chosen = port or (0 if family is socket.AF_INET6 else free_port(host))
        listener = socket.create_server((host, chosen), family=family)
    except OSError as error:
        raise CannotListen(
            f"cannot serve the console on {host}:{port}: {error.strerror or error}. "
            "Choose another console.port (0 = any free one, -1 = off) or console.host, or stop what is listening there."
        ) from error
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
    )
    for number in signal.SIGINT, signal.SIGTERM:
        # uvicorn stops on these signals and then raises them again for the previous handlers.
        signal.signal(number, signal.SIG_IGN)
    with listener:
        on_ready(f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/")
        server.run(sockets=[listener])
