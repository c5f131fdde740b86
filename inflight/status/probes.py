"""Measures the processes and Kafka. An error becomes part of the measurement instead of being raised."""

import time
import urllib.error
import urllib.request
from collections.abc import Container, Iterable, Mapping
from http.client import HTTPException
from typing import Any, Final

import msgspec
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import AuthorizationError, GroupIdNotFoundError, KafkaError, SaslAuthenticationFailedError
from prometheus_client.parser import text_string_to_metric_families

from inflight.local.endpoints import Endpoints
from inflight.local.engine_addresses import engine_addresses, reachable
from inflight.local.gateway_processes import metrics_port, process_count
from inflight.local.supervised_child import child_name
from inflight.status.measurements import (
    DROPPED_CONNECTED,
    ENGINE,
    OFFERS_REFUSED,
    STANDBY,
    KafkaStatus,
    LeaseHolder,
    MatcherGroup,
    ProcessStatus,
    TopicStatus,
)
from inflight.status.transactions import HighWatermarks
from sinks.health import UnmetCondition
from sinks.kafka.first_contact import first_contact
from sinks.kafka.kafka_python import FailFastClient
from state.errors import UnreadableRecord
from state.records.leases import Lease, decode_lease
from streaming.config.settings import Settings

_STANDBY_METRIC: Final = "inflight_engine_standby"
_ANSWER_S: Final = 3.0
_READ_S: Final = 5.0
_BY_LABEL: Final = (DROPPED_CONNECTED, OFFERS_REFUSED)
"""Metrics with one label."""


class _Readiness(msgspec.Struct):
    """The body of /readyz."""

    ok: bool
    missing: tuple[UnmetCondition, ...] = ()


def metrics_addresses(settings: Settings, more: Iterable[str]) -> list[tuple[str, str]]:
    """Returns (process, HOST:PORT) of each metrics port: of `inflight up` on the data directory, of the engines that run there,
    of the configuration, and of `more`.

    Args:
        more: Further addresses, such as `gateway=HOST:PORT`.
    """
    found = list(Endpoints.read(settings.engine.data_dir).metrics.items())
    found += [(ENGINE, address) for address in engine_addresses(settings.engine.data_dir)]
    metrics = settings.metrics
    host = reachable(metrics.host)
    several = process_count(settings)
    gateways = [(child_name("gateway", n, several), metrics_port(metrics.gateway_port, n)) for n in range(1, several + 1)]
    for name, port in (
        ("engine", metrics.engine_port),
        *gateways,
        ("bridge", metrics.bridge_port),
        ("matcher", metrics.matcher_port),
    ):
        if port > 0 and not any(name == known for known, _ in found):
            found.append((name, f"{host}:{port}"))
    for word in more:
        name, _, address = word.rpartition("=")
        found.append((name or "process", address))
    names: dict[str, str] = {}
    for name, address in found:
        names.setdefault(address, name)
    return [(name, address) for address, name in names.items()]


def probe_process(name: str, address: str) -> ProcessStatus:
    try:
        text = _get(f"http://{address}/metrics")
        readiness = msgspec.json.decode(_get(f"http://{address}/readyz"), type=_Readiness)
        values: dict[str, float] = {}
        by_label: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
                if sample.name in _BY_LABEL:
                    by_label.setdefault(sample.name, {})["".join(sample.labels.values())] = sample.value
    except (OSError, HTTPException, ValueError) as error:
        return ProcessStatus(name=name, address=address, error=_why(error))
    name = _role(name, values, is_ready=not readiness.missing)
    return ProcessStatus(name=name, address=address, missing=readiness.missing, values=values, by_label=by_label)


def _why(error: Exception) -> str:
    """Returns why a process did not answer, for people."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause)


def _role(name: str, values: Mapping[str, float], *, is_ready: bool) -> str:
    """Returns what the process does now by its metrics: after a takeover the standby is the engine."""
    waits = values.get(_STANDBY_METRIC)
    if waits is None or (not waits and not is_ready and name == STANDBY):
        return name
    return STANDBY if waits else ENGINE


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:  # noqa: S310 - an address of metrics  # nosec B310
            body: bytes = answer.read()
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        body = error.read()  # /readyz answers 503 with a body
    return body


def probe_kafka(settings: Settings) -> KafkaStatus:
    servers = settings.kafka.bootstrap_servers
    if (why := first_contact(servers)) is not None:
        return KafkaStatus(servers=servers, error=why, measured_s=time.monotonic())
    options: dict[str, Any] = {
        "client_id": "inflight-status",
        "kafka_client": FailFastClient,
        "bootstrap_timeout_ms": 1_000 * _ANSWER_S,
        "request_timeout_ms": 1_000 * _READ_S,
        **settings.kafka.client_options(),
    }
    try:
        return _probe_kafka(settings, options)
    except (KafkaError, OSError) as error:
        return KafkaStatus(
            servers=servers,
            error=" ".join(f"{type(error).__name__}: {error}".split()),
            refused=isinstance(error, AuthorizationError | SaslAuthenticationFailedError),
            measured_s=time.monotonic(),
        )


def _probe_kafka(settings: Settings, options: dict[str, Any]) -> KafkaStatus:
    names, group = settings.topics, f"{settings.topics.prefix}.engine"
    known: tuple[str, ...] = (names.messages, names.events, names.commands, names.uplink, names.receipts, names.dead_letters)
    routed = (names.uplink, names.publications, names.subscriptions) if settings.routing.enabled else ()
    known += tuple(name for name in routed if name not in known)
    consumer = KafkaConsumer(
        **options, group_id=group, enable_auto_commit=False, isolation_level="read_committed", metrics_enabled=False
    )
    watermarks: HighWatermarks | None = None
    try:
        partitions = {
            name: [TopicPartition(name, number) for number in consumer.partitions_for_topic(name) or ()]
            for name in (*known, names.leases)
        }
        missing = tuple(name for name, found in partitions.items() if not found)
        watermarks = HighWatermarks(options, (*partitions[names.messages], *partitions[names.events]))
        ends = consumer.end_offsets([partition for found in partitions.values() for partition in found])
        held = watermarks.held(ends)
        matchers: MatcherGroup | None = None
        finished: dict[TopicPartition, int] = {}
        if routed:
            matchers, finished = _probe_matchers(options, settings.routing.group_id, ends, routed)
        behind = {TopicPartition(one.topic, one.partition): one.records for one in held}
        measured_s = time.monotonic()
        topics = []
        for name in known:
            committed = {}
            if name in (names.messages, names.events):
                committed = {partition: consumer.committed(partition) for partition in partitions[name]}
            waiting = [
                ends[partition] + behind.get(partition, 0) - offset
                for partition, offset in committed.items()
                if offset is not None
            ]
            unrouted = [max(0, ends[each] - finished[each]) for each in partitions[name] if each in finished]
            topics.append(
                TopicStatus(
                    name=name,
                    end=sum(ends[partition] for partition in partitions[name]),
                    waiting=sum(waiting) if waiting else None,
                    unrouted=sum(unrouted) if unrouted else None,
                )
            )
        now_ms = time.time_ns() // 1_000_000
        leases = _newest_leases(consumer, {partition: ends[partition] for partition in partitions[names.leases]})
        holders = tuple(
            LeaseHolder(
                name=lease.holder,
                renewed_s=max(0, now_ms - written_ms) / 1_000,
                duration_s=lease.duration_ms / 1_000,
                lacks=lease.lacks,
                begun_s=max(0, now_ms - begun_ms) / 1_000,
            )
            for lease, written_ms, begun_ms in leases.values()
        )
    finally:
        consumer.close(autocommit=False, timeout_ms=1_000)
        if watermarks is not None:
            watermarks.close()
    return KafkaStatus(
        servers=settings.kafka.bootstrap_servers,
        missing_topics=missing,
        engines=_members(options, group),
        topics=tuple(topics),
        holders=holders,
        held=held,
        matchers=matchers,
        measured_s=measured_s,
    )


def _members(options: dict[str, Any], group: str) -> int:
    admin = KafkaAdminClient(**options)
    try:
        return len(admin.describe_groups([group])[group]["members"])
    except GroupIdNotFoundError:
        return 0
    finally:
        admin.close()


def _probe_matchers(
    options: dict[str, Any], group: str, ends: Mapping[TopicPartition, int], topics: Container[str]
) -> tuple[MatcherGroup | None, dict[TopicPartition, int]]:
    """Returns the group, and by partition the offset below which the matchers have finished; (None, {}) without the right to ask.

    Args:
        ends: Of all partitions.
        topics: That matchers read.
    """
    admin = KafkaAdminClient(**options)
    try:
        members = len(admin.describe_groups([group])[group]["members"])
        partitions = [partition for partition in ends if partition.topic in topics]
        committed = admin.list_group_offsets({group: partitions})[group]
    except GroupIdNotFoundError:
        return MatcherGroup(group_id=group, members=0, waiting=0, finished=0), {}
    except AuthorizationError:
        return None, {}
    finally:
        admin.close()
    finished = {partition: found.offset for partition, found in committed.items() if found.offset >= 0}
    waiting = sum(max(0, ends[partition] - offset) for partition, offset in finished.items())
    return MatcherGroup(group_id=group, members=members, waiting=waiting, finished=sum(finished.values())), finished


def lease_names(settings: Settings) -> dict[str, str]:
    """Returns the names of the gateways and bridges that hold leases, by lease id; empty if Kafka does not answer in time."""
    options = {"client_id": "inflight-status", "bootstrap_timeout_ms": 1_000 * _ANSWER_S, **settings.kafka.client_options()}
    try:
        consumer = KafkaConsumer(**options, enable_auto_commit=False, metrics_enabled=False)
        try:
            name = settings.topics.leases
            partitions = [TopicPartition(name, number) for number in consumer.partitions_for_topic(name) or ()]
            newest = _newest_leases(consumer, consumer.end_offsets(partitions))
        finally:
            consumer.close(autocommit=False, timeout_ms=1_000)
    except (KafkaError, OSError):
        return {}
    return {key.decode(errors="replace"): lease.holder for key, (lease, _, _) in newest.items()}


def _newest_leases(consumer: Any, ends: dict[TopicPartition, int]) -> dict[bytes, tuple[Lease, int, int]]:
    """Returns each lease that has not ended, with the times of its newest and its oldest record in ms, by its key."""
    newest: dict[bytes, tuple[Lease, int, int]] = {}
    if not ends:
        return newest
    consumer.assign(list(ends))
    consumer.seek_to_beginning(*ends)
    deadline = time.monotonic() + _READ_S
    while any(consumer.position(partition) < end for partition, end in ends.items()) and time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=200).values():
            for record in records:
                lease = _lease(record.value)
                _, _, begun_ms = newest.pop(record.key, (None, 0, record.timestamp))
                if lease is not None and not lease.ended:
                    newest[record.key] = lease, record.timestamp, begun_ms
    return newest


def _lease(value: bytes | None) -> Lease | None:
    try:
        return None if value is None else decode_lease(value)
    except UnreadableRecord:
        return None
