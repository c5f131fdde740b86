"""Derives findings from measurements: what is wrong and what to do. Equal measurements give equal findings, the worst first."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from inflight.status.measurements import (
    DROPPED_CONNECTED,
    ENGINE,
    OFFERS_REFUSED,
    STANDBY,
    KafkaStatus,
    LeaseHolder,
    MatcherGroup,
    Measurements,
    ProcessStatus,
)
from sinks.health import NO_BROKER, NO_PARTITION
from sinks.host.clock_skew import SKEW_ACTION, SKEW_LIMIT_S, skew_text
from state.setting import MIB
from streaming.config.units import format_size
from streaming.engine.leases.table import PATIENCE
from streaming.engine.watching.misplaced_records import ACTION as MISPLACED_ACTION
from streaming.terminal import counted

_SLOW_BATCH_S: Final = 10.0
_OLD_MESSAGE_S: Final = 3 * 3_600.0
_NEARLY_FULL: Final = 0.9
_LONG_TRANSACTION_S: Final = 10.0
_STALLED_S: Final = 1.0
"""Matchers commit three times a second."""
_CONTESTED: Final = "inflight_gateway_clients_contested"
_CLOCK_SKEW: Final = "_clock_skew_seconds"
_MISPLACED: Final = "inflight_engine_misplaced_records_total"
_DROP_ACTIONS: Final = {
    "maxlen": "the queue is full: the client gets more than it acknowledges. Send less, let it acknowledge faster, or raise "
    "max_mqueue_len",
    "expired": "messages wait longer than their time to live: `inflight client ID` says for what",
    "delivery_limit": "the client does not acknowledge what it gets: see its log",
    "rejected": "the client refuses them: `inflight dead-letters` shows its reason codes",
    "too-large": "they are larger than the client's Maximum Packet Size",
    "offline": "they had QoS 0 and came while it was offline (mqueue_store_qos0)",
}
"""Advice for people, by the outcome of the dropped messages."""
_OFFERS_TAKEN: Final = "inflight_gateway_offers_taken_total"
_BUSY_REFUSALS: Final = ("burst", "full", "pressure")
"""Refusals of offers because a gateway or a device has too much to do."""
_MANY_REFUSED: Final = 1_000
_LARGE_SHARE: Final = 0.1
_LACK_ACTIONS: Final = {condition.what: condition.action for condition in (NO_BROKER, NO_PARTITION)}
_ERROR_COUNTERS: Final = {
    "inflight_gateway_bugs_total": "connections were closed by an error of the gateway itself",
    "inflight_gateway_appends_failed_total": "records were not confirmed by Kafka in time",
    "inflight_bridge_appends_failed_total": "records were not confirmed by Kafka in time",
    "inflight_gateway_qos0_dropped_total": "QoS 0 messages were dropped because their device does not read",
}
"""Counters that should be 0, with a text for people. They count since the start of the process."""


class Severity(IntEnum):
    """CRITICAL: devices or backends are affected. WARNING: they may be soon. NOTE: good to know."""

    CRITICAL = 0
    WARNING = 1
    NOTE = 2


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A problem and what to do about it.

    Attributes:
        what, action: Texts for people.
    """

    severity: Severity
    what: str
    action: str


def findings(seen: Measurements) -> list[Finding]:
    """Returns what is wrong; empty if nothing wrong is visible from here."""
    found = [*_kafka_findings(seen), *_process_findings(seen), *_engine_findings(seen), *_session_findings(seen)]
    return sorted(found, key=lambda finding: finding.severity)


def lease_expired(holder: LeaseHolder) -> bool:
    """Returns True if the lease is so old that the engine ends the connections of its holder."""
    return holder.renewed_s > PATIENCE * holder.duration_s


def _kafka_findings(seen: Measurements) -> Iterator[Finding]:
    kafka = seen.kafka
    if kafka.refused:
        action = "check the user of [kafka] and its rights: docs/operate/install.md, Users and ACLs"
        yield Finding(Severity.CRITICAL, f"Kafka at {kafka.servers} does not let this command look: {kafka.error}", action)
        return
    if kafka.error is not None:
        action = "start it, or say where it is: --data-dir of `inflight up`, or --set kafka.bootstrap_servers=HOST:PORT"
        yield Finding(Severity.CRITICAL, f"Kafka at {kafka.servers} does not answer: {kafka.error}", action)
        return
    if kafka.missing_topics:
        what = f"topics are missing: {', '.join(kafka.missing_topics)}"
        yield Finding(Severity.CRITICAL, what, "`inflight topics` creates them; check topics.prefix, too")
        return
    if not kafka.engines:
        yield Finding(Severity.CRITICAL, "no engine works on these topics", "start one: `inflight engine`, or `inflight up`")
    if not any(not lease_expired(holder) for holder in kafka.present_holders):
        what = "no gateway and no bridge holds a lease, so no device is connected"
        yield Finding(Severity.CRITICAL, what, "start one: `inflight gateway`")
    yield from _holder_findings(seen)
    yield from _held_findings(kafka)
    if kafka.matchers is not None:
        yield from _matcher_findings(kafka.matchers, seen.limits.lag_low)
    waiting = sum(topic.waiting or 0 for topic in kafka.topics)
    if 0 < seen.limits.lag_high <= waiting:
        action = "see what is long in the micro-batches (docs/reference/metrics.md); backends wait meanwhile, and nothing is lost"
        yield Finding(Severity.CRITICAL, f"{waiting:,} records wait for the engine, over throttle.lag_high", action)
    elif 0 < seen.limits.lag_low <= waiting:
        action = "look again in a minute: if there are more then, the engine needs more cores"
        yield Finding(Severity.WARNING, f"{waiting:,} records wait for the engine", action)


def _holder_findings(seen: Measurements) -> Iterator[Finding]:
    living = [holder for holder in seen.kafka.present_holders if not lease_expired(holder)]
    names = {holder.name for holder in living}
    for holder in {holder.name: holder for holder in sorted(seen.kafka.present_holders, key=lambda one: -one.renewed_s)}.values():
        if holder.name not in names:  # else it was started again, and has another lease
            what = f"{holder.name} has not renewed its lease for {holder.renewed_s:.0f} s"
            yield Finding(Severity.NOTE, what, "nothing, if it was stopped; the engine ends its connections")
    said = {condition.what for process in seen.processes for condition in process.missing}
    for holder in living:
        if holder.lacks and holder.lacks not in said:
            action = _LACK_ACTIONS.get(holder.lacks, "its log says more")
            yield Finding(Severity.CRITICAL, f"{holder.name} is not ready: {holder.lacks}", action)


def _matcher_findings(matchers: MatcherGroup, lag_low: int) -> Iterator[Finding]:
    if not matchers.members:
        what = f"no matcher is a member of the consumer group {matchers.group_id}, so publications reach no subscriber"
        action = "start a gateway, or `inflight matcher`; set routing.enabled = false if nobody subscribes"
        yield Finding(Severity.CRITICAL, what, action)
    elif matchers.stalled_s >= _STALLED_S:
        what = f"{matchers.waiting:,} records wait for the matchers, which have finished none for {matchers.stalled_s:.0f} s"
        action = "look again in a minute; /readyz and the log of each gateway (matcher_failed, routing_tables) say what they lack"
        yield Finding(Severity.WARNING, what, action)
    elif 0 < lag_low <= matchers.waiting:
        action = "look again in a minute: if there are more then, run more gateway processes, or `inflight matcher` beside them"
        yield Finding(Severity.WARNING, f"{matchers.waiting:,} records wait for the matchers", action)


def _held_findings(kafka: KafkaStatus) -> Iterator[Finding]:
    for held in kafka.held:
        if held.open_s is not None and held.open_s < _LONG_TRANSACTION_S:
            continue  # most backends use transactions for moments
        since = "for an unknown time" if held.open_s is None else f"for {held.open_s:,.0f} s"
        writer = f" of {held.writer}" if held.writer else ""
        what = (
            f"an open transaction{writer} has held back {held.topic}-{held.partition} {since}: {held.records:,} records from "
            f"offset {held.offset} on reach nobody"
        )
        action = (
            "let its backend commit or abort it, or start the backend again with the same transactional.id; else "
            "`kafka-transactions.sh abort` (docs/operate/alerts.md, InflightTransactionOpen)"
        )
        yield Finding(Severity.CRITICAL, what, action)


def _process_findings(seen: Measurements) -> Iterator[Finding]:
    for process in seen.processes:
        where = f"{process.name} at {process.address}"
        is_spare = process.name in (ENGINE, STANDBY) and process is not seen.engine and _is_ready(seen.engine)
        if process.error is not None:
            action = "if it should run, its log says why it does not; else the address is wrong: --metrics"
            if is_spare:
                action = f"another engine works, and this one does not wait to take over from it; {action}"
            elif process.name == ENGINE and seen.has_standby:
                action = "a standby takes over when its JVM is gone: end one that hangs; its log says more"
            severity = Severity.NOTE if is_spare else Severity.CRITICAL
            yield Finding(severity, f"the {where} does not answer: {process.error}", action)
        for condition in process.missing:
            severity = Severity.NOTE if is_spare else Severity.CRITICAL
            yield Finding(severity, f"the {where} is not ready: {condition.what}", condition.action)
        if contested := process.values.get(_CONTESTED, 0):
            ids = counted(contested, "such id")
            what = f"the {where}: several devices use one client id and take each other's connection ({ids})"
            action = "give each device its own client id; the gateway's log names these: client_id_contested"
            yield Finding(Severity.WARNING, what, action)
        yield from _offer_findings(process, where)
        for name, value in process.values.items():
            if value and name in _ERROR_COUNTERS:
                yield Finding(Severity.NOTE, f"the {where}: {value:,.0f} {_ERROR_COUNTERS[name]}", "its log says when, and why")
            elif name.endswith(_CLOCK_SKEW) and abs(value) > SKEW_LIMIT_S:
                yield Finding(Severity.WARNING, f"the {where}: {skew_text(value)}", SKEW_ACTION)


def _offer_findings(process: ProcessStatus, where: str) -> Iterator[Finding]:
    by_reason = process.by_label.get(OFFERS_REFUSED, {})
    refused = {reason: int(by_reason[reason]) for reason in _BUSY_REFUSALS if by_reason.get(reason)}
    count = sum(refused.values())
    offered = int(process.values.get(_OFFERS_TAKEN, 0) + process.values.get(OFFERS_REFUSED, 0))
    if count < _MANY_REFUSED or count < _LARGE_SHARE * offered:
        return
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in refused.items())
    what = f"the {where} has left {count:,} of {offered:,} messages to the micro-batches since it started ({reasons})"
    action = (
        "nothing is lost, it takes longer. burst, pressure: run more gateway processes, or give them processors; full: its "
        "devices are slower than their messages"
    )
    yield Finding(Severity.NOTE, what, action)


def _drop_findings(seen: Measurements, engine: ProcessStatus | None) -> Iterator[Finding]:
    drops = seen.drops
    in_metrics = {} if engine is None else engine.by_label.get(DROPPED_CONNECTED, {})
    before = {outcome: int(count) for outcome, count in in_metrics.items() if count}
    worst = max(drops.counts or before, key=lambda outcome: (drops.counts or before)[outcome], default="")
    action = f"{_DROP_ACTIONS.get(worst, 'see their dead letters')}; docs/operate/alerts.md, InflightDropsForConnected"
    if drops.total:
        dropped = counted(drops.total, "message was dropped", "messages were dropped")
        what = f"{dropped} for clients that are connected: {drops}"
        yield Finding(Severity.WARNING, what, action)
    elif before:
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in before.items())
        what = f"the engine has dropped messages for clients that were connected since it started: {counts}"
        yield Finding(Severity.NOTE, what, action)


def _partitioner_findings(seen: Measurements, engine: ProcessStatus | None) -> Iterator[Finding]:
    since_start = 0 if engine is None else int(engine.values.get(_MISPLACED, 0))
    if seen.misplaced.found:
        what = f"records of messages lie in another partition than the one of their key: {seen.misplaced}"
        yield Finding(Severity.WARNING, what, MISPLACED_ACTION)
    elif since_start:
        what = f"the engine has found {since_start:,} records of messages in a wrong partition since it started"
        yield Finding(Severity.NOTE, what, MISPLACED_ACTION)


def _is_ready(engine: ProcessStatus | None) -> bool:
    return engine is not None and engine.is_ready


def _engine_findings(seen: Measurements) -> Iterator[Finding]:
    if seen.ends.is_repeated:
        action = f"{seen.ends.action}; docs/operate/alerts.md, InflightEngineEndsRepeatedly"
        yield Finding(Severity.CRITICAL, str(seen.ends), action)
    if seen.hangs.count:
        hangs = seen.hangs
        ended = counted(hangs.count, "engine was ended because its query hung", "engines were ended because their query hung")
        what = f"{ended}, the last one {hangs.at}: {hangs.reason}"
        yield Finding(Severity.NOTE, what, "docs/operate/troubleshoot.md, A query that hangs")
    if seen.losses.records:
        newest = ", ".join(seen.losses.newest)
        lost = f"{seen.losses}; the newest loss, {seen.losses.at}: {newest}"
        what = f"engines have gone on without records that were deleted unread, by Kafka or with their topic: {lost}"
        yield Finding(Severity.NOTE, what, "docs/operate/accept_loss.md says what that means, and how this note goes away")
    engine = seen.engine
    yield from _drop_findings(seen, engine)
    yield from _partitioner_findings(seen, engine)
    if engine is None:
        return
    batch_s = engine.values.get("inflight_engine_last_micro_batch_seconds", 0)
    if batch_s > _SLOW_BATCH_S:
        action = "after a start or a standstill it passes; else see docs/operate/alerts.md, InflightLagGrows"
        yield Finding(Severity.WARNING, f"the last micro-batch took {batch_s:.0f} s", action)
    free = engine.values.get("inflight_engine_free_disk_bytes")
    if free is not None and free < seen.limits.free_disk_low:
        what = f"{format_size(int(free))} are left on the disk of the checkpoint"
        yield Finding(Severity.CRITICAL, what, "make room: on a full disk the engine stops")
    backlog = engine.values.get("inflight_engine_backlog_bytes", 0)
    if 0 < seen.limits.backlog_high <= backlog:
        what = f"{int(backlog) // MIB} MiB wait for clients that are connected and behind, over throttle.backlog_high"
        action = "find the clients: `inflight sessions`; backends and publications wait meanwhile, and nothing is lost"
        yield Finding(Severity.WARNING, what, action)


def _session_findings(seen: Measurements) -> Iterator[Finding]:
    if seen.sessions_error is not None:
        action = (
            "an engine that starts or takes over answers after some seconds; else run this as the engine's user where it runs, "
            "with its --data-dir. `inflight sessions` reads the checkpoint"
        )
        yield Finding(Severity.NOTE, f"the sessions are not shown: {seen.sessions_error}", action)
    sessions = seen.sessions
    if sessions is None:
        return
    if sessions.quarantined:
        action = "`inflight sessions --where quarantined`; docs/operate/troubleshoot.md, A client is quarantined"
        yield Finding(Severity.WARNING, counted(sessions.quarantined, "client is quarantined", "clients are quarantined"), action)
    if sessions.oldest_s is not None and sessions.oldest_s > _OLD_MESSAGE_S:
        what = f"a message has waited for its acknowledgement for {sessions.oldest_s / 3_600:.1f} h"
        action = "its device is away, or does not acknowledge (retry_mqtt5): `inflight sessions --where 'inflight > 0'`"
        yield Finding(Severity.NOTE, what, action)
    limit = seen.limits.max_mqueue_len
    full = [client for client in sessions.worst if limit and client.queued >= _NEARLY_FULL * limit]
    if full:
        what = f"the queues of {len(full)} clients or more are nearly full, the longest is that of {full[0].client_id}"
        yield Finding(Severity.WARNING, what, f"from max_mqueue_len = {limit} on what ranks lowest is dropped (a dead letter)")
