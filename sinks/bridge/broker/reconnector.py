"""Keeps a connection to the broker."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from sinks.bridge.broker.connection import BrokerConnection, BrokerRefused
from sinks.bridge.broker.incoming import Incoming
from sinks.bridge.broker.paho_properties import BrokerLimits
from sinks.bridge.broker.throttle import DialBackoff
from sinks.bridge.settings import BridgeSettings

_log: Final = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class BrokerReconnector:
    """Dials, and dials again when the connection ends, after a wait (`DialBackoff`), until `run` is cancelled.

    Args:
        on_up: The subscriptions hold.
        on_down: The connection has ended; nothing more comes from it.
        on_refused: The attempt has failed.
    """

    settings: BridgeSettings
    client_id: str
    clean: bool
    subscriptions: Callable[[BrokerLimits], Sequence[str]]
    on_message: Callable[[Incoming], None]
    on_up: Callable[[], None]
    on_down: Callable[[str], None]
    on_refused: Callable[[], None]
    connection: BrokerConnection | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self.settings
        lasting_ms = settings.backoff.initial_ms + settings.connect_timeout_ms
        backoff = DialBackoff(settings.backoff, lasting_ms=lasting_ms, key=self.client_id)
        while True:
            started = loop.time()
            connection = BrokerConnection(settings, client_id=self.client_id, clean=self.clean, on_message=self.on_message)
            reason = "the bridge stops"
            try:
                await connection.open(self.subscriptions)
                self.connection = connection
                _log.info("broker_connected", client_id=self.client_id)
                self.on_up()
                reason = await connection.ended
            except (BrokerRefused, OSError, ValueError) as error:  # TimeoutError is an OSError, TLS trouble may be a ValueError
                reason = self._explained(error)
                self.on_refused()
            finally:
                connection.close(reason)
                if self.connection is not None:
                    self.connection = None
                    self.on_down(reason)
            wait_ms = backoff.ended((loop.time() - started) * 1_000, is_throttled=connection.is_throttled)
            _log.warning("broker_connection_ended", client_id=self.client_id, reason=reason, wait_ms=round(wait_ms))
            await asyncio.sleep(wait_ms / 1_000)

    def _explained(self, error: Exception) -> str:
        if isinstance(error, BrokerRefused):
            return str(error)
        if isinstance(error, ssl.SSLError):
            return f"{error}; check bridge.tls_cafile, and that the certificate is for bridge.host = {self.settings.host}"
        what = str(error) or f"no answer within {self.settings.connect_timeout_ms} ms"
        return f"{what}; check that the broker runs at bridge.host and bridge.port, and whether it wants bridge.tls"

    def drop(self, reason: str) -> None:
        """Ends the connection. The broker sends unacknowledged messages again on the next one."""
        if self.connection is not None:
            self.connection.close(reason)
