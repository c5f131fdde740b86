"""Findings are derived from measurements: what is wrong and what to do."""

from dataclasses import replace

import pytest

from inflight.status.findings import Finding, Severity, findings
from inflight.status.measurements import (
    ClientQueue,
    HeldPartition,
    KafkaStatus,
    LeaseHolder,
    MatcherGroup,
    Measurements,
    ProcessStatus,
    SessionTotals,
    Thresholds,
    TopicStatus,
    rates,
    with_stall,
)
from sinks.health import NO_BROKER, STARTING, UnmetCondition
from state.model import Outcome
from streaming.engine.lifecycle.losses import Losses
from streaming.engine.operator.reported_drops import DROPPED
from streaming.engine.watching.dropped_messages import DroppedMessages
from streaming.engine.watching.engine_ends import EngineEnds
from streaming.engine.watching.misplaced_records import MisplacedRecords
from streaming.engine.watching.watchdog import Hangs

KAFKA = KafkaStatus(
    servers="k:9092",
    engines=1,
    topics=(TopicStatus(name="inflight.messages", end=100, waiting=3), TopicStatus(name="inflight.uplink", end=7)),
    holders=(LeaseHolder(name="gateway 127.0.0.1:1883", renewed_s=4, duration_s=30),),
    measured_s=10.0,
)
MATCHERS = MatcherGroup(group_id="matchers", members=2, waiting=10, finished=700)
SESSIONS = SessionTotals(
    sessions=2, connected=1, quarantined=0, inflight=1, queued=1, oldest_s=5.0, age_s=1.0, source="checkpoint"
)
WELL = Measurements(
    kafka=KAFKA,
    limits=Thresholds(lag_low=40_000, lag_high=200_000, max_mqueue_len=1_000, free_disk_low=1 << 28, backlog_high=1 << 30),
    processes=(
        ProcessStatus(
            name="engine",
            address="e:1",
            values={"inflight_engine_last_micro_batch_seconds": 0.3, "inflight_engine_free_disk_bytes": 1e10},
        ),
        ProcessStatus(
            name="gateway", address="g:1", values={"inflight_gateway_bugs_total": 0, "inflight_gateway_clock_skew_seconds": -0.2}
        ),
    ),
    sessions=SESSIONS,
)


def kafka(**changes: object) -> Measurements:
    return replace(WELL, kafka=replace(KAFKA, **changes))


def sessions(**changes: object) -> Measurements:
    return replace(WELL, sessions=replace(SESSIONS, **changes))


def process(name: str, **changes: object) -> Measurements:
    return replace(WELL, processes=(ProcessStatus(name=name, address="a:1", **changes),))


def client(queued: int) -> ClientQueue:
    return ClientQueue(client_id="c1", connected=False, inflight=0, queued=queued, queued_bytes=0, oldest_s=None)


def gateway(refused: dict[str, float], taken: float) -> Measurements:
    name = "inflight_gateway_offers_refused_total"
    values = {name: sum(refused.values()), "inflight_gateway_offers_taken_total": taken}
    return process("gateway", values=values, by_label={name: refused})


def engines(*found: ProcessStatus) -> list[tuple[Severity, str]]:
    return [(finding.severity, finding.what) for finding in findings(replace(WELL, processes=found))]


WORKS = ProcessStatus(name="engine", address="e:1")
BEGINS = ProcessStatus(name="engine", address="e:2", missing=(STARTING,))
WAITS = ProcessStatus(name="standby", address="e:2")
AWAY = ProcessStatus(name="engine", address="e:2", error="refused")


def test_a_second_engine_is_nothing_critical_while_one_works() -> None:
    assert engines(WORKS, WAITS) == engines(WAITS, WORKS) == []
    for spare, what in (
        (AWAY, "the engine at e:2 does not answer: refused"),
        (BEGINS, f"the engine at e:2 is not ready: {STARTING.what}"),
        (replace(AWAY, name="standby"), "the standby at e:2 does not answer: refused"),
    ):
        assert engines(WORKS, spare) == engines(spare, WORKS) == [(Severity.NOTE, what)]


def test_an_engine_that_is_away_is_critical_until_another_one_works() -> None:
    (found,) = findings(replace(WELL, processes=(AWAY, WAITS)))
    assert found.severity is Severity.CRITICAL
    assert "a standby takes over" in found.action
    assert engines(AWAY, BEGINS)[0][0] is Severity.CRITICAL


def test_a_gateway_that_is_back_at_its_address_is_no_finding() -> None:
    old = LeaseHolder(name=KAFKA.holders[0].name, renewed_s=77, duration_s=30)
    assert findings(kafka(holders=(old, *KAFKA.holders))) == []


def test_a_name_with_several_expired_leases_is_told_once() -> None:
    gone = [LeaseHolder(name="bridge b", renewed_s=age_s, duration_s=30) for age_s in (300, 77)]
    (found,) = findings(kafka(holders=(*KAFKA.holders, *gone)))
    assert found.what == "bridge b has not renewed its lease for 77 s"


def test_a_bridge_that_lacks_its_broker_is_known_by_its_lease() -> None:
    bridge = LeaseHolder(name="bridge b", renewed_s=1, duration_s=30, lacks=NO_BROKER.what)
    seen = kafka(holders=(*KAFKA.holders, bridge))
    assert findings(seen) == [Finding(Severity.CRITICAL, f"bridge b is not ready: {NO_BROKER.what}", NO_BROKER.action)]
    its_metrics = ProcessStatus(name="bridge", address="b:1", missing=(NO_BROKER,))
    (found,) = findings(replace(seen, processes=(*WELL.processes, its_metrics)))
    assert found.what == f"the bridge at b:1 is not ready: {NO_BROKER.what}", "it is told once"


def test_messages_dropped_for_connected_clients_are_a_finding() -> None:
    drops = DroppedMessages(since_s=0.0, newest_s=60.0, counts={"expired": 9, "maxlen": 3_480}, clients=("fast-1", "fast-2"))
    (found,) = findings(replace(WELL, drops=drops))
    assert found.severity is Severity.WARNING
    assert found.what == (
        "3,489 messages were dropped for clients that are connected: 3,480 maxlen, 9 expired, since 00:00:00 UTC, the newest at "
        "00:01:00, for example for fast-1, fast-2"
    )
    assert "max_mqueue_len" in found.action, "the outcome with most of them says what to do"


def test_records_in_a_wrong_partition_are_a_finding_with_what_to_do() -> None:
    misplaced = MisplacedRecords(newest_s=60.0, found=30, checked=40, examples=("pump-7 in 0 instead of 3",))
    (found,) = findings(replace(WELL, misplaced=misplaced))
    assert found.severity is Severity.WARNING
    assert found.what == (
        "records of messages lie in another partition than the one of their key: 30 of 40 records checked since 00:00:00 UTC, "
        "for example pump-7 in 0 instead of 3"
    )
    assert "murmur2" in found.action
    assert "docs/guides/kafka_clients.md" in found.action


def test_misplaced_records_of_an_engine_elsewhere_are_known_by_its_metric() -> None:
    (found,) = findings(process("engine", values={"inflight_engine_misplaced_records_total": 12.0}))
    assert (found.severity, found.what) == (
        Severity.NOTE,
        "the engine has found 12 records of messages in a wrong partition since it started",
    )


def test_drops_of_an_engine_elsewhere_are_known_by_its_metric() -> None:
    seen = process("engine", by_label={"inflight_engine_dropped_connected_total": {"maxlen": 12.0, "expired": 0.0}})
    (found,) = findings(seen)
    assert found.severity is Severity.NOTE
    assert found.what.endswith("since it started: 12 maxlen")


def test_many_offers_refused_for_want_of_time_are_a_finding() -> None:
    (found,) = findings(gateway({"burst": 900.0, "pressure": 200.0, "cc": 5.0}, 8_895))
    assert found.what.endswith(
        "has left 1,100 of 10,000 messages to the micro-batches since it started (900 burst, 200 pressure)"
    )
    for refused, taken in (({"burst": 999.0}, 0), ({"burst": 2_000.0}, 30_000), ({"cc": 9_000.0}, 0)):
        assert findings(gateway(refused, taken)) == []


@pytest.mark.parametrize("outcome", DROPPED)
def test_each_outcome_of_a_drop_has_its_own_advice(outcome: Outcome) -> None:
    seen = replace(WELL, drops=DroppedMessages(newest_s=1.0, counts={outcome.value: 1}))
    (found,) = findings(seen)
    assert found.what.startswith("1 message was dropped for clients that are connected: ")
    assert "see their dead letters" not in found.action


def test_nothing_is_wrong_with_what_is_well() -> None:
    assert findings(WELL) == []


@pytest.mark.parametrize(
    ("seen", "severity", "what", "action"),
    [
        (kafka(error="timed out"), Severity.CRITICAL, "Kafka at k:9092 does not answer: timed out", "kafka.bootstrap_servers"),
        (
            kafka(error="no", refused=True),
            Severity.CRITICAL,
            "Kafka at k:9092 does not let this command look: no",
            "Users and ACLs",
        ),
        (kafka(missing_topics=("a", "b")), Severity.CRITICAL, "topics are missing: a, b", "inflight topics"),
        (
            kafka(held=(HeldPartition(topic="m", partition=3, offset=120, records=6, open_s=65.4, writer="transactional.id b"),)),
            Severity.CRITICAL,
            "an open transaction of transactional.id b has held back m-3 for 65 s: 6 records from offset 120 on reach nobody",
            "let its backend commit or abort it",
        ),
        (
            kafka(held=(HeldPartition(topic="m", partition=3, offset=120, records=6, open_s=None, writer=""),)),
            Severity.CRITICAL,
            "an open transaction has held back m-3 for an unknown time",
            "InflightTransactionOpen",
        ),
        (kafka(engines=0), Severity.CRITICAL, "no engine works", "inflight engine"),
        (kafka(holders=()), Severity.CRITICAL, "no gateway and no bridge holds a lease", "inflight gateway"),
        (
            kafka(holders=(*KAFKA.holders, LeaseHolder(name="bridge b", renewed_s=46, duration_s=30))),
            Severity.NOTE,
            "bridge b has not renewed its lease for 46 s",
            "nothing, if it was stopped",
        ),
        (kafka(topics=(TopicStatus(name="t", end=0, waiting=40_000),)), Severity.WARNING, "40,000 records wait", "more cores"),
        (kafka(topics=(TopicStatus(name="t", end=0, waiting=200_000),)), Severity.CRITICAL, "throttle.lag_high", "micro-batches"),
        (
            kafka(matchers=replace(MATCHERS, members=0, waiting=0)),
            Severity.CRITICAL,
            "no matcher is a member of the consumer group matchers",
            "inflight matcher",
        ),
        (
            kafka(matchers=replace(MATCHERS, stalled_s=1.2)),
            Severity.WARNING,
            "10 records wait for the matchers, which have finished none for 1 s",
            "/readyz",
        ),
        (
            kafka(matchers=replace(MATCHERS, waiting=40_000)),
            Severity.WARNING,
            "40,000 records wait for the matchers",
            "more gateway processes",
        ),
        (process("gateway", error="refused"), Severity.CRITICAL, "the gateway at a:1 does not answer: refused", "its log"),
        (
            process("gateway", missing=(UnmetCondition("no lease", "check"),)),
            Severity.CRITICAL,
            "is not ready: no lease",
            "check",
        ),
        (
            process("gateway", values={"inflight_gateway_clients_contested": 2}),
            Severity.WARNING,
            "the gateway at a:1: several devices use one client id and take each other's connection (2 such ids)",
            "client_id_contested",
        ),
        (
            process("gateway", values={"inflight_gateway_clock_skew_seconds": -864_000.0}),
            Severity.WARNING,
            "the gateway at a:1: the clock is 10.0 days behind that of Kafka's brokers",
            "NTP",
        ),
        (
            process("engine", values={"inflight_engine_clock_skew_seconds": 7_200.0}),
            Severity.WARNING,
            "the engine at a:1: the clock is 2.0 h ahead of that of Kafka's brokers",
            "NTP",
        ),
        (process("gateway", values={"inflight_gateway_bugs_total": 2}), Severity.NOTE, "2 connections were closed", "its log"),
        (
            process("engine", values={"inflight_engine_last_micro_batch_seconds": 12.0}),
            Severity.WARNING,
            "the last micro-batch took 12 s",
            "InflightLagGrows",
        ),
        (
            process("engine", values={"inflight_engine_free_disk_bytes": 1 << 20}),
            Severity.CRITICAL,
            "1MiB are left on the disk",
            "make room",
        ),
        (
            process("engine", values={"inflight_engine_backlog_bytes": 1 << 30}),
            Severity.WARNING,
            "1024 MiB wait for clients that are connected and behind, over throttle.backlog_high",
            "inflight sessions",
        ),
        (
            replace(WELL, hangs=Hangs(count=2, at="yesterday", reason="why")),
            Severity.NOTE,
            "2 engines were ended because their query hung, the last one yesterday: why",
            "A query that hangs",
        ),
        (
            replace(WELL, losses=Losses(at="today", records={"m": 1_200}, newest=("m-0 from 0 to 1200",))),
            Severity.NOTE,
            "that were deleted unread, by Kafka or with their topic: 1,200 of m; the newest loss, today: m-0 from 0 to 1200",
            "docs/operate/accept_loss.md",
        ),
        (
            replace(WELL, ends=EngineEnds(count=3, at="now", cause="no memory", action="do this", position="micro-batch 7")),
            Severity.CRITICAL,
            "the engine has ended 3 times in a row at micro-batch 7, the last time now: no memory",
            "do this; docs/operate/alerts.md, InflightEngineEndsRepeatedly",
        ),
        (replace(WELL, sessions_error="no checkpoint"), Severity.NOTE, "are not shown: no checkpoint", "--data-dir"),
        (sessions(quarantined=3), Severity.WARNING, "3 clients are quarantined", "--where quarantined"),
        (sessions(oldest_s=4 * 3_600.0), Severity.NOTE, "for 4.0 h", "inflight sessions"),
        (sessions(worst=(client(900), client(10))), Severity.WARNING, "queues of 1 clients or more", "max_mqueue_len = 1000"),
    ],
)
@pytest.mark.promise("open-transaction")
def test_what_is_wrong_is_named_with_what_to_do(seen: Measurements, severity: Severity, what: str, action: str) -> None:
    (found,) = findings(seen)
    assert found.severity is severity
    assert what in found.what
    assert action in found.action


def test_a_short_transaction_is_none_of_what_is_wrong() -> None:
    held = HeldPartition(topic="m", partition=3, offset=120, records=6, open_s=9.9, writer="")
    assert findings(kafka(held=(held,))) == []


def test_matchers_that_work_are_none_of_what_is_wrong() -> None:
    assert findings(kafka(matchers=replace(MATCHERS, waiting=39_999, stalled_s=0.9))) == []


@pytest.mark.parametrize(
    ("before", "now", "stalled_s"),
    [
        (MATCHERS, MATCHERS, 2.0),
        (replace(MATCHERS, stalled_s=3.0), replace(MATCHERS, waiting=90), 5.0),
        (replace(MATCHERS, stalled_s=3.0), replace(MATCHERS, finished=701), 0.0),
        (replace(MATCHERS, waiting=0), MATCHERS, 0.0),
        (MATCHERS, replace(MATCHERS, waiting=0), 0.0),
        (None, MATCHERS, 0.0),
    ],
)
def test_matchers_stall_while_records_wait_and_none_is_finished(
    before: MatcherGroup | None, now: MatcherGroup, stalled_s: float
) -> None:
    seen = with_stall(replace(KAFKA, matchers=before), replace(KAFKA, matchers=now, measured_s=KAFKA.measured_s + 2.0))
    assert seen.matchers is not None
    assert seen.matchers.stalled_s == stalled_s


def test_without_routing_no_matcher_stalls() -> None:
    assert with_stall(replace(KAFKA, matchers=MATCHERS), KAFKA) == KAFKA


def test_of_a_kafka_that_is_away_nothing_else_is_concluded() -> None:
    assert len(findings(replace(WELL, kafka=KafkaStatus(servers="k", error="away")))) == 1


def test_limits_of_0_are_none() -> None:
    limits = Thresholds(lag_low=0, lag_high=0, max_mqueue_len=0, free_disk_low=0, backlog_high=0)
    seen = replace(kafka(topics=(TopicStatus(name="t", end=0, waiting=10**9),)), limits=limits)
    assert findings(replace(seen, sessions=replace(SESSIONS, worst=(client(10**6),)))) == []


def test_the_worst_comes_first() -> None:
    seen = replace(kafka(engines=0), hangs=Hangs(count=1), sessions=replace(SESSIONS, quarantined=1))
    assert [found.severity for found in findings(seen)] == [Severity.CRITICAL, Severity.WARNING, Severity.NOTE]
    assert isinstance(findings(seen)[0], Finding)


def test_rates_are_records_a_second_between_two_measurements() -> None:
    later = replace(KAFKA, topics=(replace(KAFKA.topics[0], end=150), TopicStatus(name="new", end=9)), measured_s=12.0)
    assert rates(KAFKA, later) == {"inflight.messages": 25.0}
    assert rates(KAFKA, KAFKA) == {}
