"""A connection to the user's broker, on paho-mqtt and asyncio, and the loop that keeps having one.

paho runs without its thread: its socket is registered with our loop, only the dial (TCP, TLS) runs in a worker thread. Everything
else, callbacks too, happens on the loop.

Each connection is a new paho client. paho's memory of what it had sent would be sent again after a reconnect, behind the
session's back, which replays by itself and may have given a message up meanwhile. For the same reason packet ids start again at
1, and so the connection that publishes starts clean: a broker that remembers QoS 2 packet ids of an earlier connection would take
new messages for repetitions and lose them. What has to be kept are subscriptions, so these have a connection of their own.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import paho.mqtt.client as mqtt
import structlog
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from sinks.bridge.paho_properties import BrokerLimits, connect_properties, from_paho, read_limits, to_paho
from sinks.bridge.settings import BridgeSettings
from sinks.bridge.throttle import DialBackoff
from state.errors import InflightError
from state.model import PublishProperties, QoS, ReasonCode

_log: Final = structlog.get_logger(__name__)
_MISC_INTERVAL_S: Final = 0.5
_REFUSED_FROM: Final = 0x80
_V5: Final = 5
_TOO_MUCH: Final = (ReasonCode.QUOTA_EXCEEDED, ReasonCode.SERVER_BUSY, ReasonCode.MESSAGE_RATE_TOO_HIGH)


class BrokerRefused(InflightError):
    """The broker did not let us in, or not subscribe. The text says what to do."""


class Incoming:
    """A message from the broker. Call `confirm` once it is where it belongs; the broker hears of it in order [MQTT-4.6.0-2]."""

    __slots__ = ("_connection", "confirmed", "message")

    def __init__(self, connection: "BrokerConnection", message: mqtt.MQTTMessage) -> None:
        self._connection = connection
        self.message = message
        self.confirmed = False

    @property
    def topic(self) -> str | None:
        """None: not UTF-8, which no broker should let through."""
        try:
            return self.message.topic
        except UnicodeDecodeError:
            return None

    @property
    def payload(self) -> bytes:
        return bytes(self.message.payload)

    @property
    def properties(self) -> PublishProperties:
        return from_paho(self.message.properties)

    @property
    def expiry_interval_s(self) -> int | None:
        expiry: int | None = getattr(self.message.properties, "MessageExpiryInterval", None)
        return expiry

    def confirm(self) -> None:
        self.confirmed = True
        self._connection.acknowledge()


class BrokerConnection:
    """One connection, from dial to end. on_message runs on the loop and may be called before `open` returns."""

    def __init__(self, settings: BridgeSettings, *, client_id: str, clean: bool, on_message: Callable[[Incoming], None]) -> None:
        self.limits = BrokerLimits()
        self.is_throttled = False  # once `ended`: because the broker has too much to do
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._settings = settings
        self._clean = clean
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._client = self._new_client(client_id)
        self._fd = -1
        self._ticker: asyncio.TimerHandle | None = None
        self._connack: asyncio.Future[None] = self._loop.create_future()
        self._suback: asyncio.Future[Sequence[int]] = self._loop.create_future()
        self._unacknowledged: deque[Incoming] = deque()
        self._quota = settings.publish_quota
        self._waiting: deque[tuple[tuple[Any, ...], Callable[[int], None]]] = deque()
        self._published: dict[int, Callable[[int], None]] = {}

    async def open(self, subscriptions: Callable[[BrokerLimits], Sequence[str]]) -> None:
        """1. dial, 2. CONNECT and CONNACK, 3. SUBSCRIBE and SUBACK. Raises BrokerRefused, OSError, TimeoutError."""
        async with asyncio.timeout(self._settings.connect_timeout_ms / 1_000):
            dial = self._loop.run_in_executor(None, self._dial)  # 1
            dial.add_done_callback(self._dialled)
            await asyncio.shield(dial)
            self._attach()
            await self._connack  # 2
            filters = list(subscriptions(self.limits))
            if filters:  # 3
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
        """done: called once with the broker's reason code, for QoS 1 and 2, unless the connection ends before."""
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

    def acknowledge(self) -> None:
        """Tell the broker about every message up to the first one that is not confirmed."""
        while self._unacknowledged and self._unacknowledged[0].confirmed:
            message = self._unacknowledged.popleft().message
            if self._fd >= 0:
                self._client.ack(message.mid, message.qos)

    def close(self, reason: str) -> None:
        """Say goodbye if the socket takes it, and let go."""
        if self._fd >= 0:
            sock = self._client.socket()
            self._client.disconnect()
            self._client.loop_write()
            self._end(reason)
            if sock is not None:
                sock.close()
        self._end(reason)

    # --- paho ------------------------------------------------------------------------------------------------------------------

    def _new_client(self, client_id: str) -> mqtt.Client:
        settings = self._settings
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=None if settings.mqtt_version >= _V5 else self._clean,
            protocol=MQTTProtocolVersion(settings.mqtt_version),
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.max_inflight_messages = 0  # counted here, because the broker's Receive Maximum comes too late for paho
        client.connect_timeout = settings.connect_timeout_ms / 1_000
        if settings.username is not None:
            client.username_pw_set(settings.username, settings.password)
        if settings.tls:
            client.tls_set(
                ca_certs=settings.tls_cafile or None,
                certfile=settings.tls_certfile or None,
                keyfile=settings.tls_keyfile or None,
            )
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected
        client.on_message = self._received
        client.on_publish = self._broker_answered
        client.on_subscribe = self._subscribed
        client.on_socket_register_write = self._wants_to_write
        client.on_socket_unregister_write = self._has_written
        client.on_socket_close = self._closing
        return client

    def _dial(self) -> None:
        """In a worker thread; nothing of ours is touched by it."""
        settings = self._settings
        properties: Properties | None = None
        clean_start: mqtt.CleanStartOption = mqtt.MQTT_CLEAN_START_FIRST_ONLY
        if settings.mqtt_version >= _V5:
            clean_start = self._clean
            properties = connect_properties(
                session_expiry_s=0 if self._clean else settings.session_expiry_s,
                receive_maximum=settings.send_quota,
                maximum_packet_size_bytes=settings.max_packet_size_bytes,
            )
        self._client.connect(settings.host, settings.port, settings.keep_alive_s, clean_start=clean_start, properties=properties)

    def _dialled(self, dial: "asyncio.Future[None]") -> None:
        """Too late, perhaps: nobody waits for this socket any more."""
        sock = self._client.socket()
        if not dial.cancelled() and dial.exception() is None and self.ended.done() and sock is not None:
            sock.close()

    def _attach(self) -> None:
        sock = self._client.socket()
        if sock is None:
            raise ConnectionError("the broker closed the socket at once")
        self._fd = sock.fileno()
        self._loop.add_reader(self._fd, self._readable)
        if self._client.want_write():
            self._loop.add_writer(self._fd, self._writable)
        self._tick()

    def _tick(self) -> None:
        if self._fd >= 0:
            self._ticker = self._loop.call_later(_MISC_INTERVAL_S, self._tick)
            self._run(self._client.loop_misc)

    def _readable(self) -> None:
        self._run(self._client.loop_read)
        sock: Any = self._client.socket()
        while sock is not None and getattr(sock, "pending", int)():  # bytes that TLS has read ahead wake nobody
            self._run(self._client.loop_read)
            sock = self._client.socket()

    def _writable(self) -> None:
        self._run(self._client.loop_write)

    def _run(self, step: Callable[[], MQTTErrorCode]) -> None:
        try:
            code = step()
        except Exception as error:  # noqa: BLE001 - paho raises whatever a malformed packet makes Python raise
            _log.warning("broker_connection_failed", error=repr(error))
            self._end(f"malformed packet: {error!r}")
            return
        if code not in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_AGAIN):
            self._end(mqtt.error_string(code))

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

    def _end(self, reason: str) -> None:
        self._closing()
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        self._unacknowledged.clear()
        self._waiting.clear()
        self._published.clear()
        for future in self._connack, self._suback:
            if not future.done():
                future.set_exception(ConnectionError(reason))
                future.exception()  # nobody may be waiting
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
        self.is_throttled = reason.value in _TOO_MUCH
        said_nothing = not flags.is_disconnect_packet_from_server and reason.value == ReasonCode.UNSPECIFIED_ERROR
        self._end("the broker closed the connection" if said_nothing else str(reason))

    def _subscribed(self, _c: object, _u: object, _mid: object, reasons: Sequence[PahoReasonCode], _p: object) -> None:
        if not self._suback.done():
            self._suback.set_result([reason.value for reason in reasons])

    def _received(self, _c: object, _u: object, message: mqtt.MQTTMessage) -> None:
        incoming = Incoming(self, message)
        if message.qos:
            self._unacknowledged.append(incoming)
        self._on_message(incoming)

    def _broker_answered(self, _c: object, _u: object, mid: int, reason: PahoReasonCode, _p: object) -> None:
        done = self._published.pop(mid, None)
        if done is not None:
            # Not from inside paho's callback: it still counts the message as its own, and `done` publishes the next one.
            self._loop.call_soon(done, reason.value)
            self._loop.call_soon(self._write_waiting)

    def _write_waiting(self) -> None:
        while self._waiting and len(self._published) < self._quota and self._fd >= 0:
            self._write(*self._waiting.popleft())

    def _write(self, arguments: tuple[Any, ...], done: Callable[[int], None]) -> None:
        info = self._client.publish(*arguments)
        if info.rc in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_AGAIN):
            self._published[info.mid] = done
        elif info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:  # no packet id is free
            self._loop.call_soon(done, ReasonCode.QUOTA_EXCEEDED)

    def _subscribe_argument(self, filters: list[str]) -> list[Any]:
        """QoS 1, never 2: paho answers a QoS 2 PUBLISH with PUBREC before we have it in the log, and forgets it when we crash."""
        if self._settings.mqtt_version >= _V5:
            return [(name, SubscribeOptions(qos=1)) for name in filters]
        return [(name, 1) for name in filters]


class BrokerReconnector:
    """Keeps one connection to the broker: dials, and dials again after RocketMQ's backoff, until `run` is cancelled.

    on_up: subscriptions are in force; on_down: nothing of the connection will come any more; on_refused: there was none.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        *,
        client_id: str,
        clean: bool,
        subscriptions: Callable[[BrokerLimits], Sequence[str]],
        on_message: Callable[[Incoming], None],
        on_up: Callable[[], None],
        on_down: Callable[[str], None],
        on_refused: Callable[[], None],
    ) -> None:
        self.connection: BrokerConnection | None = None
        self._settings = settings
        self._client_id = client_id
        self._clean = clean
        self._subscriptions = subscriptions
        self._on_message = on_message
        self._on_up = on_up
        self._on_down = on_down
        self._on_refused = on_refused

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self._settings
        lasting_ms = settings.backoff.initial_ms + settings.connect_timeout_ms
        backoff = DialBackoff(settings.backoff, lasting_ms=lasting_ms, key=self._client_id)
        while True:
            started = loop.time()
            connection = BrokerConnection(settings, client_id=self._client_id, clean=self._clean, on_message=self._on_message)
            reason = "the bridge stops"
            try:
                await connection.open(self._subscriptions)
                self.connection = connection
                _log.info("broker_connected", client_id=self._client_id)
                self._on_up()
                reason = await connection.ended
            except (BrokerRefused, OSError, ValueError) as error:  # TimeoutError is an OSError, TLS trouble may be a ValueError
                reason = self._explained(error)
                self._on_refused()
            finally:
                connection.close(reason)
                if self.connection is not None:
                    self.connection = None
                    self._on_down(reason)
            wait_ms = backoff.ended((loop.time() - started) * 1_000, is_throttled=connection.is_throttled)
            _log.warning("broker_connection_ended", client_id=self._client_id, reason=reason, wait_ms=round(wait_ms))
            await asyncio.sleep(wait_ms / 1_000)

    def _explained(self, error: Exception) -> str:
        if isinstance(error, BrokerRefused):
            return str(error)
        if isinstance(error, ssl.SSLError):
            return f"{error}; check bridge.tls_cafile, and that the certificate is for bridge.host = {self._settings.host}"
        what = str(error) or f"no answer within {self._settings.connect_timeout_ms} ms"
        return f"{what}; check that the broker runs at bridge.host and bridge.port, and whether it wants bridge.tls"

    def drop(self, reason: str) -> None:
        """End the present connection: what is not acknowledged, the broker sends again on the next."""
        if self.connection is not None:
            self.connection.close(reason)
