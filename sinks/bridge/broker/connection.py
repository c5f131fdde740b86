"""A connection to the user's broker, on paho-mqtt and asyncio.

paho runs without its thread. Its socket is registered with the event loop (`PahoSocket`). Only the dial (TCP, TLS) runs in a
worker thread; all callbacks run on the loop.

Each connection is a new paho client. An old one would resend its messages after a reconnect, although the session replays by
itself and may have given messages up. A new client counts packet ids from 1, so the connection that publishes starts clean. A
broker that remembers QoS 2 packet ids of an earlier connection would take new messages for repetitions and lose them.
Subscriptions have to be kept, so they have a connection of their own.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from sinks.bridge.broker.incoming import Incoming
from sinks.bridge.broker.paho_properties import BrokerLimits, connect_properties, read_limits, to_paho
from sinks.bridge.broker.paho_socket import PahoSocket
from sinks.bridge.settings import BridgeSettings
from state.errors import InflightError
from state.model import PublishProperties, QoS, ReasonCode

_V5: Final = 5
_REFUSED_FROM: Final = 0x80
_OVERLOADED: Final = (ReasonCode.QUOTA_EXCEEDED, ReasonCode.SERVER_BUSY, ReasonCode.MESSAGE_RATE_TOO_HIGH)


class BrokerRefused(InflightError):
    """The broker refuses the connection or a subscription. The text says what to do."""


class BrokerConnection:
    """One connection, from dial to end. `on_message` may be called before `open` returns."""

    def __init__(self, settings: BridgeSettings, *, client_id: str, clean: bool, on_message: Callable[[Incoming], None]) -> None:
        self.limits = BrokerLimits()
        self.is_throttled = False  # once `ended`: because the broker is overloaded
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._settings = settings
        self._clean = clean
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._client = _new_client(settings, client_id=client_id, clean=clean)
        self._client.on_connect = self._connected
        self._client.on_disconnect = self._disconnected
        self._client.on_message = self._received
        self._client.on_publish = self._broker_answered
        self._client.on_subscribe = self._subscribed
        self._socket = PahoSocket(self._client, on_end=self._end)
        self._connack: asyncio.Future[None] = self._loop.create_future()
        self._suback: asyncio.Future[Sequence[int]] = self._loop.create_future()
        self._unacknowledged: deque[Incoming] = deque()
        self._quota = settings.publish_quota
        self._waiting: deque[tuple[tuple[Any, ...], Callable[[int], None]]] = deque()
        self._published: dict[int, Callable[[int], None]] = {}

    async def open(self, subscriptions: Callable[[BrokerLimits], Sequence[str]]) -> None:
        """Does 1. the dial, 2. CONNECT and CONNACK, 3. SUBSCRIBE and SUBACK. Raises BrokerRefused, OSError, TimeoutError."""
        async with asyncio.timeout(self._settings.connect_timeout_ms / 1_000):
            dialling = self._loop.run_in_executor(None, partial(_dial, self._client, self._settings, clean=self._clean))  # step 1
            dialling.add_done_callback(self._dialled)
            await asyncio.shield(dialling)
            self._socket.attach()
            await self._connack  # step 2
            filters = list(subscriptions(self.limits))
            if filters:  # step 3
                self._client.subscribe(self._subscribe_argument(filters))
                codes = await self._suback
                refused = [f"{name} ({code:#04x})" for name, code in zip(filters, codes, strict=False) if code >= _REFUSED_FROM]
                if refused:
                    raise BrokerRefused(
                        f"the broker refuses to subscribe {', '.join(refused)}: allow it for this user, or change the topics"
                    )

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: QoS,
        retain: bool,
        expiry_interval_s: int | None,
        properties: PublishProperties,
        done: Callable[[int], None],
    ) -> None:
        """Publishes a message.

        Args:
            done: Called once with the broker's reason code, unless the connection ends before.
        """
        qos = min(qos, self.limits.maximum_qos)
        packed = to_paho(properties, expiry_interval_s) if self._settings.mqtt_version >= _V5 else None
        arguments = (topic, payload, int(qos), retain and self.limits.retain_available, packed)
        if qos == QoS.AT_MOST_ONCE:
            self._client.publish(*arguments)
            self._loop.call_soon(done, ReasonCode.SUCCESS)
        elif len(self._published) < self._quota:
            self._write(arguments, done)
        else:
            self._waiting.append((arguments, done))

    def _acknowledge(self) -> None:
        """Acknowledges all messages up to the first one that is not confirmed."""
        while self._unacknowledged and self._unacknowledged[0].confirmed:
            message = self._unacknowledged.popleft().message
            if self._socket.is_open:
                self._client.ack(message.mid, message.qos)

    def close(self, reason: str) -> None:
        """Sends DISCONNECT if the socket is open, and ends the connection."""
        if self._socket.is_open:
            sock = self._client.socket()
            self._client.disconnect()
            self._client.loop_write()
            self._end(reason)
            if sock is not None:
                sock.close()
        self._end(reason)

    # --- paho's callbacks ------------------------------------------------------------------------------------------------------

    def _dialled(self, dialling: "asyncio.Future[None]") -> None:
        """Closes the socket of a dial that has finished after the end of the connection."""
        sock = self._client.socket()
        if not dialling.cancelled() and dialling.exception() is None and self.ended.done() and sock is not None:
            sock.close()

    def _end(self, reason: str) -> None:
        self._socket.detach()
        self._unacknowledged.clear()
        self._waiting.clear()
        self._published.clear()
        for future in self._connack, self._suback:
            if not future.done():
                future.set_exception(ConnectionError(reason))
                future.exception()  # marks it as retrieved
        if not self.ended.done():
            self.ended.set_result(reason)

    def _connected(self, _c: object, _u: object, _flags: object, reason: PahoReasonCode, properties: Properties | None) -> None:
        if self._connack.done():
            return
        if reason.is_failure:
            self._connack.set_exception(
                BrokerRefused(
                    f"the broker refuses the connection: {reason} ({reason.value:#04x}); check user name, password and its limits"
                )
            )
            return
        self.limits = read_limits(properties)
        self._quota = min(self._settings.publish_quota, self.limits.receive_maximum)
        self._connack.set_result(None)

    def _disconnected(self, _c: object, _u: object, flags: mqtt.DisconnectFlags, reason: PahoReasonCode, _p: object) -> None:
        self.is_throttled = reason.value in _OVERLOADED
        has_no_reason = not flags.is_disconnect_packet_from_server and reason.value == ReasonCode.UNSPECIFIED_ERROR
        self._end("the broker closed the connection" if has_no_reason else str(reason))

    def _subscribed(self, _c: object, _u: object, _mid: object, reasons: Sequence[PahoReasonCode], _p: object) -> None:
        if not self._suback.done():
            self._suback.set_result([reason.value for reason in reasons])

    def _received(self, _c: object, _u: object, message: mqtt.MQTTMessage) -> None:
        incoming = Incoming(message, on_confirmed=self._acknowledge)
        if message.qos:
            self._unacknowledged.append(incoming)
        self._on_message(incoming)

    def _broker_answered(self, _c: object, _u: object, mid: int, reason: PahoReasonCode, _p: object) -> None:
        done = self._published.pop(mid, None)
        if done is not None:
            # Not inside paho's callback, where paho still counts the message, because `done` publishes the next one.
            self._loop.call_soon(done, reason.value)
            self._loop.call_soon(self._write_waiting)

    def _write_waiting(self) -> None:
        while self._waiting and len(self._published) < self._quota and self._socket.is_open:
            self._write(*self._waiting.popleft())

    def _write(self, arguments: tuple[Any, ...], done: Callable[[int], None]) -> None:
        info = self._client.publish(*arguments)
        if info.rc in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_AGAIN):
            self._published[info.mid] = done
        elif info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:  # no packet id is free
            self._loop.call_soon(done, ReasonCode.QUOTA_EXCEEDED)

    def _subscribe_argument(self, filters: list[str]) -> list[Any]:
        """Subscribes at QoS 1: paho answers a QoS 2 PUBLISH with PUBREC before it is in the log, and forgets it in a crash."""
        if self._settings.mqtt_version >= _V5:
            return [(name, SubscribeOptions(qos=1)) for name in filters]
        return [(name, 1) for name in filters]


def _new_client(settings: BridgeSettings, *, client_id: str, clean: bool) -> mqtt.Client:
    """Makes a client without callbacks.

    Args:
        clean: True if the broker forgets the session of an earlier connection.
    """
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        client_id=client_id,
        clean_session=None if settings.mqtt_version >= _V5 else clean,
        protocol=MQTTProtocolVersion(settings.mqtt_version),
        reconnect_on_failure=False,
        manual_ack=True,
    )
    client.max_inflight_messages = 0  # counted above, because the broker's Receive Maximum comes too late for paho
    client.connect_timeout = settings.connect_timeout_ms / 1_000
    if settings.username is not None:
        client.username_pw_set(settings.username, settings.password)
    if settings.tls:
        client.tls_set(
            ca_certs=settings.tls_cafile or None,
            certfile=settings.tls_certfile or None,
            keyfile=settings.tls_keyfile or None,
        )
    return client


def _dial(client: mqtt.Client, settings: BridgeSettings, *, clean: bool) -> None:
    """Does TCP, TLS and CONNECT. It blocks, so call it in a worker thread. Raises OSError, ValueError."""
    properties: Properties | None = None
    clean_start: mqtt.CleanStartOption = mqtt.MQTT_CLEAN_START_FIRST_ONLY
    if settings.mqtt_version >= _V5:
        clean_start = clean
        properties = connect_properties(
            session_expiry_s=0 if clean else settings.session_expiry_s,
            receive_maximum=settings.receive_maximum,
            maximum_packet_size_bytes=settings.max_packet_size_bytes,
        )
    client.connect(settings.host, settings.port, settings.keep_alive_s, clean_start=clean_start, properties=properties)
