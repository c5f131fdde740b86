"""A device with paho-mqtt, which somebody else wrote, on a session that is kept."""

import socket
from typing import Any

from inflight.demo.up import UpProcess
from tests.integration.up.paho_subscriber import PahoSubscriber


class PahoDevice(PahoSubscriber):
    """paho-mqtt with a kept session, as it comes, but for acknowledging by hand at first. It subscribes whenever it connects.

    max_inflight: of its publications; paho's own default is 20.
    """

    def __init__(self, up: UpProcess, client_id: str, version: int, *, max_inflight: int = 20) -> None:
        super().__init__(up.mqtt, client_id, version, keeps_session=True, manual_ack=True)
        self.client.max_inflight_messages_set(max_inflight)
        self.client.on_connect = lambda client, data, flags, reason, properties: client.subscribe("cmd/#", qos=2)

    def _note(self, mid: int, reasons: Any) -> None:
        super()._note(mid, reasons)
        self._connected.set()

    def cut(self) -> None:
        """Cuts the network connection; paho reconnects."""
        connection = self.client.socket()
        assert connection is not None
        connection.shutdown(socket.SHUT_RDWR)
