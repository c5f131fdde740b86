"""Runs a paho client's socket on the event loop instead of paho's own thread."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import paho.mqtt.client as mqtt
import structlog
from paho.mqtt.enums import MQTTErrorCode

_log: Final = structlog.get_logger(__name__)
_MISC_INTERVAL_S: Final = 0.5


class PahoSocket:
    """Lets paho read, write and keep alive from `attach` to `detach`.

    Args:
        on_end: Called with the reason when paho fails.
    """

    def __init__(self, client: mqtt.Client, *, on_end: Callable[[str], None]) -> None:
        self._client = client
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._ticker: asyncio.TimerHandle | None = None
        client.on_socket_register_write = self._wants_to_write
        client.on_socket_unregister_write = self._has_written
        client.on_socket_close = self._closing

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def attach(self) -> None:
        """Starts after the dial. Raises ConnectionError if the socket is closed already."""
        sock = self._client.socket()
        if sock is None:
            raise ConnectionError("the broker closed the socket at once")
        self._fd = sock.fileno()
        self._loop.add_reader(self._fd, self._readable)
        if self._client.want_write():
            self._loop.add_writer(self._fd, self._writable)
        self._tick()

    def detach(self) -> None:
        """Stops reading and writing. The socket stays open."""
        self._closing()
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    def _tick(self) -> None:
        if self._fd >= 0:
            self._ticker = self._loop.call_later(_MISC_INTERVAL_S, self._tick)
            self._run(self._client.loop_misc)

    def _readable(self) -> None:
        self._run(self._client.loop_read)
        sock: Any = self._client.socket()
        while sock is not None and getattr(sock, "pending", int)():  # the loop does not report bytes that TLS has read ahead
            self._run(self._client.loop_read)
            sock = self._client.socket()

    def _writable(self) -> None:
        self._run(self._client.loop_write)

    def _run(self, step: Callable[[], MQTTErrorCode]) -> None:
        try:
            code = step()
        except Exception as error:  # noqa: BLE001 - paho raises whatever a malformed packet makes Python raise
            _log.warning("broker_connection_failed", error=repr(error))
            self._on_end(f"malformed packet: {error!r}")
            return
        if code not in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_AGAIN):
            self._on_end(mqtt.error_string(code))

    def _wants_to_write(self, *_: object) -> None:
        if self._fd >= 0:
            self._loop.add_writer(self._fd, self._writable)

    def _has_written(self, *_: object) -> None:
        if self._fd >= 0:
            self._loop.remove_writer(self._fd)

    def _closing(self, *_: object) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._fd = -1
