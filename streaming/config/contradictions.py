"""Keys that are fine one by one but not together: refused before anything starts, with what to change."""

from collections.abc import Iterator
from typing import Any, Final

from streaming.config.access_sections import access_problems
from streaming.config.configuration import Configuration
from streaming.config.policy_sections import dead_letter_problems
from streaming.config.section import KeyPath
from streaming.config.sections import ProfileSection, SessionSection
from streaming.config.units import format_size

_MQTT_OVERHEAD_BYTES: Final = 64 << 10


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; everything else, lists too, is replaced."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        result[key] = merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return result


def session_of(profile: ProfileSection, session: SessionSection) -> SessionSection:
    """The session settings of a profile's clients: what it says, and for the rest [session]."""
    return SessionSection(**merged(session.model_dump(), profile.model_dump(exclude_unset=True, exclude={"clients"})))


def contradictions(settings: Configuration) -> Iterator[tuple[KeyPath, str]]:
    """What the keys are not allowed to be together, and what to change."""
    engine, gateway = settings.engine, settings.gateway
    sessions: list[tuple[KeyPath, SessionSection]] = [(("session",), settings.session)]
    sessions += [(("profiles", index), session_of(profile, settings.session)) for index, profile in enumerate(settings.profiles)]
    for path, session in sessions:
        yield from session.backoff.problems(path)
        if 0 < session.high_watermark <= session.low_watermark:
            yield (
                (*path, "low_watermark"),
                f"is {session.low_watermark}, not below high_watermark = {session.high_watermark}: lower it, or set "
                "high_watermark = 0 to never ask backends to wait",
            )
        if session.max_mqueue_len and 0 < session.max_mqueue_bytes < engine.max_payload_bytes:
            yield (
                (*path, "max_mqueue_bytes"),
                f"is {format_size(session.max_mqueue_bytes)}, so a message of engine.max_payload_bytes = "
                f"{format_size(engine.max_payload_bytes)} would never fit in the queue: raise it, or lower max_payload_bytes",
            )
        if 2 * session.max_subscription_bytes > engine.max_record_bytes:
            yield (
                (*path, "max_subscription_bytes"),
                f"is {format_size(session.max_subscription_bytes)}: a gateway is told all topic filters in one record, which may "
                f"have engine.max_record_bytes = {engine.max_record_bytes}; keep it below half of that",
            )
    needed = engine.max_payload_bytes + 2 * engine.max_headers_bytes
    if needed > engine.max_record_bytes:
        yield (
            ("engine", "max_record_bytes"),
            f"is {engine.max_record_bytes}, but a message of the largest size needs {needed} (max_payload_bytes + 2 × "
            "max_headers_bytes): raise it (and max.message.bytes of the topics), or lower max_payload_bytes",
        )
    if gateway.max_packet_size_bytes + _MQTT_OVERHEAD_BYTES > engine.max_record_bytes:
        yield (
            ("gateway", "max_packet_size_bytes"),
            f"is {format_size(gateway.max_packet_size_bytes)}, and with {format_size(_MQTT_OVERHEAD_BYTES)} around it such a "
            f"packet does not fit in a record of engine.max_record_bytes = {engine.max_record_bytes}: lower it, or raise that",
        )
    yield from _process_problems(settings)
    topics = settings.topics
    if 0 < topics.replication_factor < topics.min_insync_replicas:
        yield (
            ("topics", "min_insync_replicas"),
            f"is {topics.min_insync_replicas}, more than replication_factor = {topics.replication_factor}: Kafka would confirm "
            "nothing. With 3 replicas 2 are usual",
        )
    throttle = settings.throttle
    for on, high, low in (
        (throttle.lag_high, "lag_high", "lag_low"),
        (throttle.state_high, "state_high", "state_low"),
        (throttle.free_disk_low, "free_disk_high", "free_disk_low"),
    ):
        if on and getattr(throttle, high) <= getattr(throttle, low):
            yield ("throttle", low), f"is not below {high}: lower it, or raise {high}"
    yield from access_problems(gateway.plain_listener(), settings.listeners, gateway.login)
    yield from settings.bridge.problems(settings.kafka, settings.topics)
    yield from settings.kafka.problems()
    yield from dead_letter_problems(
        settings.exchanges,
        settings.policies,
        settings.permissions,
        topics=settings.topics,
        max_client_id_bytes=gateway.max_client_id_bytes,
    )


def _process_problems(settings: Configuration) -> Iterator[tuple[KeyPath, str]]:
    processes, partitions = settings.gateway.processes, settings.topics.partitions.commands
    if processes > partitions:
        yield (
            ("gateway", "processes"),
            f"is {processes}, more than topics.partitions.commands = {partitions}, of which each process owns some: lower it, or "
            "raise that",
        )
    for index, listener in enumerate(settings.listeners):
        if processes != 1 and listener.port == 0:
            yield ("listeners", index, "port"), "is 0, and several gateway processes have to find the same port: choose one"
