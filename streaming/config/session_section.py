"""The sections [session] and [[profiles]]: the limits and timers of a session. Defaults: state.settings.SessionSettings."""

from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from state.model import MAX_PACKET_ID
from state.settings import BackoffSettings, Overflow, RetryMqtt5, SessionSettings
from streaming.config.section import DAY, HOUR, SECOND, DurationMs, KeyPath, RetryIntervalMs, Section, SizeBytes, key
from streaming.config.units import NEVER_MS, format_duration

_SESSION: Final = SessionSettings()
_BACKOFF: Final = _SESSION.backoff

_Packets = Annotated[int, Field(ge=0, le=MAX_PACKET_ID)]


def _at_least_one_attempt(value: int) -> int:
    if value == 0:
        raise ValueError("0 attempts would deliver nothing: write 1 or more, or -1 for no limit")
    return value


class BackoffSection(Section, configures=_BACKOFF):
    """Waits after a receiver has said that it is throttled (0x97): RocketMQ's and gRPC's exponential backoff."""

    initial: DurationMs = key("the first wait, without jitter", _BACKOFF.initial_ms, ge=1, le=HOUR)
    multiplier: float = key("each wait is this many times the one before", ge=1, le=10)
    jitter: float = key("part of the wait by which it is made longer or shorter, after the cap", ge=0, le=0.9)
    max: DurationMs = key("the cap; at least `initial`", _BACKOFF.max_ms, ge=1, le=DAY)

    def to_backoff_settings(self) -> BackoffSettings:
        """The same for sessions and bridges."""
        return self.plain(BackoffSettings, initial_ms=self.initial, max_ms=self.max)

    def problems(self, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
        """What the keys are not allowed to be together. path: of the section that the back-off is in."""
        if self.max < self.initial:
            initial, longest = format_duration(self.initial), format_duration(self.max)
            yield (*path, "backoff", "max"), f"is {longest}, less than backoff.initial = {initial}: raise it"


class SessionSection(Section, configures=_SESSION):
    """The limits and timers of a session, with EMQX's names. [[profiles]] has others for some clients."""

    retry_interval: RetryIntervalMs = key(
        'an unacknowledged PUBLISH or PUBREL is sent again after this long; a list is a schedule: ["30s", "1m", "5m"] = after '
        "30 s, 1 min more, then every 5 min",
        _SESSION.retry_interval_ms,
    )
    retry_mqtt5: RetryMqtt5 = key(
        "the same for MQTT 5, which forbids resends on a live connection: reconnect = close it, so that the device comes back "
        "and gets everything again; timer = send again anyway; wait = do nothing",
    )
    max_inflight: _Packets = key(
        "QoS 1 and 2 messages unacknowledged at once; the client's Receive Maximum may be smaller; 0 = 65535"
    )
    prefetch: _Packets = key(
        "messages that the gateway holds ready beyond max_inflight: keeps fast devices busy between micro-batches"
    )
    max_mqueue_len: int = key("messages that wait; when it is full see overflow; 0 = no limit", ge=0, le=1_000_000)
    max_mqueue_bytes: SizeBytes = key("the same by payload bytes; 0 = no limit", ge=0, le=1 << 30)
    mqueue_store_qos0: bool = key("keep QoS 0 messages while the client is offline")
    overflow: Overflow = key("a full queue gives up its oldest message (drop_oldest) or the new one (reject)")
    max_awaiting_rel: _Packets = key(
        "QoS 2 publications of a device not yet released, the Receive Maximum of CONNACK; 0 = no limit"
    )
    await_rel_timeout: DurationMs = key(
        "such a publication is forgotten after this long", _SESSION.await_rel_timeout_ms, ge=SECOND, le=DAY
    )
    session_expiry_interval: DurationMs = key(
        "how long an MQTT 3.1.1 session outlives its connection; MQTT 5 clients say it themselves",
        _SESSION.session_expiry_interval_s * SECOND,
        ge=0,
        le=NEVER_MS,
        multiple_of=1_000,
    )
    high_watermark: float = key(
        "backends are asked to send this client nothing more (PREFIX.throttle) when this part of max_mqueue_len or "
        "max_mqueue_bytes is used; 0 = never",
        ge=0,
        le=1,
    )
    low_watermark: float = key("backends may go on when it is down to this; below high_watermark", ge=0, le=1)
    delivery_limit: Annotated[int, AfterValidator(_at_least_one_attempt)] = key(
        "attempts before a message is dead-lettered, at least 1; -1 = no limit", ge=-1, le=1_000_000
    )
    deduplication_window: int = key("message ids per client of which a repetition is recognised; 0 = none", ge=0, le=100_000)
    backoff: BackoffSection = BackoffSection()

    def to_session_settings(self) -> SessionSettings:
        """The same for the pure session."""
        first_ms, *later_ms = self.retry_interval if isinstance(self.retry_interval, tuple) else (self.retry_interval,)
        return self.plain(
            SessionSettings,
            retry_interval_ms=first_ms,
            later_retry_intervals_ms=tuple(later_ms),
            await_rel_timeout_ms=self.await_rel_timeout,
            session_expiry_interval_s=self.session_expiry_interval // SECOND,
            backoff=self.backoff.to_backoff_settings(),
        )


class ProfileSection(SessionSection):
    """Other session settings for some clients. Only the keys that are written differ from [session]; the first match wins."""

    clients: str = Field(min_length=1, description="pattern of client ids: * any text, ? one character, [ab] one of these")
