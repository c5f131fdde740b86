"""Keys that are fine one by one but not together: refused before anything starts, with what to change."""

from collections.abc import Iterator, Mapping
from typing import Final

from sinks.bridge.routes import Routes
from sinks.mqtt.settings import NO_LISTENER, ClientCertificate, ListenerSettings, LoginSettings
from state.dead_letters.exchanges import Exchanges
from state.dead_letters.policy import policy_problems
from state.model import Destination, DestinationKind
from state.settings import BackoffSettings, SessionSettings
from streaming.config.configuration import Configuration
from streaming.config.section import KeyPath
from streaming.config.units import format_duration, format_size
from streaming.settings import ThrottleSettings

_MQTT_OVERHEAD_BYTES: Final = 64 << 10
_OWN_TOPICS: Final = ("messages", "events", "commands", "uplink", "receipts", "ledger", "throttle")
_RESERVED_TABLES: Final = frozenset({"ledger", "uplink", "receipts", "sessions"})
"""Names that mean something else in `inflight sql`, where case does not matter."""
_DEAD_LETTER_TABLE: Final = "dead_letters"

Problems = Iterator[tuple[KeyPath, str]]
"""(key path, what is wrong and what to change)."""


def contradictions(settings: Configuration) -> Problems:
    """Yields everything that the keys are not allowed to be together."""
    engine, gateway, topics = settings.engine, settings.gateway, settings.topics
    yield from _session_problems(("session",), settings.session, settings)
    for index, (_, session) in enumerate(settings.session_profiles):
        yield from _session_problems(("profiles", index), session, settings)
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
    if 0 < topics.replication_factor < topics.min_insync_replicas:
        yield (
            ("topics", "min_insync_replicas"),
            f"is {topics.min_insync_replicas}, more than replication_factor = {topics.replication_factor}: Kafka would confirm "
            "nothing. With 3 replicas 2 are usual",
        )
    yield from _process_problems(settings)
    yield from _throttle_problems(settings.throttle)
    yield from _access_problems(settings)
    try:
        Routes(settings.bridge)
    except ValueError as error:
        yield ("bridge",), str(error)
    yield from _backoff_problems(("bridge",), settings.bridge.backoff)
    yield from ((("kafka", name), message) for name, message in settings.kafka.problems())
    yield from _dead_letter_problems(settings)


def _session_problems(path: KeyPath, session: SessionSettings, settings: Configuration) -> Problems:
    engine = settings.engine
    yield from _backoff_problems(path, session.backoff)
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
    for policy in settings.policies:
        if policy.dead_letter_limit is not None and policy.dead_letter_limit > session.max_dead_letters:
            yield (
                (*path, "max_dead_letters"),
                f"is {session.max_dead_letters}, so no message reaches dead_letter_limit = {policy.dead_letter_limit} of the "
                f"policy {policy.name!r}: raise it, or lower that",
            )
    # AcceptConnection has each filter twice, once with its options.
    if 4 * session.max_subscription_bytes > engine.max_record_bytes:
        yield (
            (*path, "max_subscription_bytes"),
            f"is {format_size(session.max_subscription_bytes)}: a gateway is told all topic filters in one record, which may "
            f"have engine.max_record_bytes = {engine.max_record_bytes}; keep it below a quarter of that",
        )


def _backoff_problems(path: KeyPath, backoff: BackoffSettings) -> Problems:
    if backoff.max_ms < backoff.initial_ms:
        initial, longest = format_duration(backoff.initial_ms), format_duration(backoff.max_ms)
        yield (*path, "backoff", "max"), f"is {longest}, less than backoff.initial = {initial}: raise it"


def _process_problems(settings: Configuration) -> Problems:
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


def _throttle_problems(throttle: ThrottleSettings) -> Problems:
    for on, high, low in (
        (throttle.lag_high, "lag_high", "lag_low"),
        (throttle.state_high, "state_high", "state_low"),
        (throttle.free_disk_low, "free_disk_high", "free_disk_low"),
        (throttle.backlog_high, "backlog_high", "backlog_low"),
    ):
        if on and getattr(throttle, high) <= getattr(throttle, low):
            yield ("throttle", low), f"is not below {high}: lower it, or raise {high}"


def _access_problems(settings: Configuration) -> Problems:
    gateway = settings.gateway
    yield from _token_problems(gateway.login)
    if gateway.port != NO_LISTENER:
        yield from _login_problems(gateway.plain_listener, gateway.login, ("gateway",))
    elif not settings.listeners:
        yield ("gateway", "port"), "is -1, so there must be [[listeners]]"
    for index, listener in enumerate(settings.listeners):
        yield from _listener_problems(listener, gateway.login, ("listeners", index))


def _listener_problems(listener: ListenerSettings, login: LoginSettings, path: KeyPath) -> Problems:
    asks = listener.client_certificate is not ClientCertificate.NONE
    if asks and not (listener.tls_certfile and listener.client_cafile):
        yield (*path, "client_certificate"), "needs tls_certfile and client_cafile, the authorities that may have signed it"
    if listener.client_crlfile and not asks:
        yield (*path, "client_crlfile"), "revokes certificates that nobody shows: set client_certificate, or remove it"
    if listener.sni_certfiles and not listener.tls_certfile:
        yield (*path, "sni_certfiles"), "needs tls_certfile, for devices that ask for no host name or for another one"
    if listener.tls_keyfile and not listener.tls_certfile:
        yield (*path, "tls_keyfile"), "is the key of no certificate: set tls_certfile, too"
    if not asks:
        yield from _login_problems(listener, login, path)


def _token_problems(login: LoginSettings) -> Problems:
    if login.token_keyfile and login.token_jwks_url:
        yield ("gateway", "login", "token_jwks_url"), "is given beside token_keyfile: the keys have one source, remove the other"
    if login.token_jwks_cafile and not login.token_jwks_url:
        yield ("gateway", "login", "token_jwks_cafile"), "is for a server that nobody asks: set token_jwks_url, or remove it"


def _login_problems(listener: ListenerSettings, login: LoginSettings, path: KeyPath) -> Problems:
    if not login.is_configured and not listener.lets_anonymous_in(is_login_configured=False):
        yield (
            (*path, "host"),
            f"is {listener.host}, which others reach, and nobody could log in there: set gateway.login.password_file or "
            "gateway.login.token_keyfile or token_jwks_url, ask for client certificates in [[listeners]], or say anonymous = "
            "true for everybody",
        )


def _dead_letter_problems(settings: Configuration) -> Problems:
    names: set[str] = set()
    own_topics = {getattr(settings.topics, name): name for name in _OWN_TOPICS}
    for index, exchange in enumerate(settings.exchanges):
        if exchange.name in names:
            yield ("exchanges", index, "name"), f"{exchange.name!r} is declared twice: put all bindings into one exchange"
        names.add(exchange.name)
        for number, binding in enumerate(exchange.bindings):
            fault = _destination_fault(binding.destination, own_topics, settings.gateway.max_client_id_bytes)
            if fault:
                yield ("exchanges", index, "bindings", number, "to"), fault
    owners: set[str] = set()
    for index, permission in enumerate(settings.permissions):
        if permission.owner in owners:
            yield ("permissions", index, "owner"), f"{permission.owner!r} is listed twice: put all patterns into one entry"
        owners.add(permission.owner)
    declared = Exchanges(declared=settings.exchanges)
    for index, wrong, message in policy_problems(settings.policies, declared, settings.permissions):
        yield ("policies", index, wrong), message


def _destination_fault(destination: Destination, own_topics: Mapping[str, str], max_client_id_bytes: int) -> str:
    """Returns why a binding may not name this destination; empty = it may.

    Args:
        own_topics: The names of Inflight's own topics, with their keys.
        max_client_id_bytes: The longest client id.
    """
    text = str(destination)
    if destination.kind is DestinationKind.TOPIC and destination.name in own_topics:
        return (
            f"{text!r} is the topic of {own_topics[destination.name]}, where a dead letter would be read as something else: "
            "name another topic, or client:ID to give the message to a client"
        )
    if destination.kind is DestinationKind.CLIENT and len(destination.name.encode()) > max_client_id_bytes:
        return f"{text[:40]!r}… is longer than gateway.max_client_id_bytes = {max_client_id_bytes}: choose a shorter id"
    return ""
