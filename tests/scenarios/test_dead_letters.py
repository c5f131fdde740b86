"""Scenarios of dead letters, with many sessions and their topics. protocol.md, section 6; docs/guides/dead_letters.md."""

import json
from itertools import pairwise

import pytest

from state.dead_letters.exchanges import Binding, Exchange, ExchangeType, parse_destination
from state.dead_letters.policy import Policy
from state.model import DEAD_LETTERED, Outcome
from state.settings import Overflow, RecordLimits, SessionSettings
from tests.scenarios.engine_model import EngineModel

REFUSED = 0x87
NEVER_S = 0xFFFF_FFFF


def fanout(name: str, *destinations: str) -> Exchange:
    bindings = tuple(Binding(destination=parse_destination(destination)) for destination in destinations)
    return Exchange(name=name, type=ExchangeType.FANOUT, bindings=bindings)


def direct(name: str, **destinations: str) -> Exchange:
    bindings = tuple(Binding(key=key, destination=parse_destination(to)) for key, to in destinations.items())
    return Exchange(name=name, type=ExchangeType.DIRECT, bindings=bindings)


def test_without_a_policy_all_deaths_go_to_the_dead_letter_topic() -> None:
    engine = EngineModel(max_mqueue_len=1)
    engine.send("a", "dropped").send("a", "rejected").connect("a", answer=REFUSED).lose_connection("a")
    engine.send("a", "expired", ("expiration", b"1000")).after(1)
    assert engine.read() == ["dropped", "rejected", "expired"]
    assert [engine.headers(index=index)["x-first-death-reason"] for index in range(3)] == ["maxlen", "rejected", "expired"]


def test_a_dead_letter_says_in_which_queue_it_died_and_why() -> None:
    engine = EngineModel().connect("a", answer=REFUSED).send("a", "m", topic="alarm/fire")
    assert engine.deaths() == [
        {"queue": "a", "reason": "rejected", "count": 1, "time": engine.now_ms, "exchange": "", "routing-keys": ["alarm/fire"]}
    ]
    headers = engine.headers()
    assert headers["x-first-death-queue"] == headers["x-last-death-queue"] == "a"
    assert headers["x-exchange"] == "dead-letters"
    assert headers["x-routing-key"] == "alarm/fire"
    assert "client refused it" in headers["x-detail"]


def test_a_rejected_message_comes_back_three_times_and_is_then_parked() -> None:
    """Delayed retry without any code of its own: a queue with a time to live whose exchange leads back."""
    engine = EngineModel(
        policies=(
            Policy(
                clients="lamp",
                dead_letter_exchange="retry",
                dead_letter_routing_key="{client}",
                dead_letter_limit=3,
                limit_exchange="parking",
            ),
            Policy(clients="delay/*", dead_letter_exchange="", message_ttl_ms=10_000),
        ),
        exchanges=(fanout("retry", "client:delay/{client}"), fanout("parking", "topic:parking")),
    )
    engine.connect("lamp", answer=REFUSED).send("lamp", "on", topic="lamp/switch")
    for came in range(1, 4):
        assert engine.received("lamp") == ["on"] * came
        assert engine.queued("delay/lamp") == ["on"]
        engine.after(9.9)
        assert engine.received("lamp") == ["on"] * came
        engine.after(0.1)
    assert engine.received("lamp") == ["on"] * 4
    assert engine.counts("parking") == {("lamp", "rejected"): 4, ("delay/lamp", "expired"): 3}
    assert engine.headers("parking")["x-first-death-reason"] == "rejected"
    assert engine.headers("parking")["mqtt-topic"] == "lamp/switch"
    assert [publish.topic for publish in engine.devices["lamp"].received] == ["lamp/switch"] * 4
    engine.after(100)
    assert engine.read("parking") == ["on"]
    assert engine.read() == []


def test_a_retry_that_is_limited_where_it_waits_ends_with_equal_counts() -> None:
    engine = EngineModel(
        policies=(
            Policy(clients="lamp", dead_letter_exchange="retry"),
            Policy(clients="delay", dead_letter_exchange="", message_ttl_ms=1_000, dead_letter_limit=2, limit_exchange="parking"),
        ),
        exchanges=(fanout("retry", "client:delay"), fanout("parking", "topic:parking")),
    )
    engine.connect("lamp", answer=REFUSED).send("lamp", "on").after(3)
    assert engine.counts("parking") == {("lamp", "rejected"): 3, ("delay", "expired"): 3}
    assert engine.received("lamp") == ["on"] * 3


def test_a_message_that_is_accepted_on_its_return_is_delivered() -> None:
    engine = EngineModel(
        policies=(
            Policy(clients="lamp", dead_letter_exchange="retry"),
            Policy(clients="delay", dead_letter_exchange="", message_ttl_ms=1_000),
        ),
        exchanges=(fanout("retry", "client:delay"),),
    )
    answers = iter([REFUSED, 0])
    engine.connect("lamp", answer=lambda _: next(answers)).send("lamp", "on", ("message-id", b"m")).after(1)
    told = [(receipt["client_id"], receipt["outcome"], receipt["final"], receipt["deaths"]) for receipt in engine.receipts]
    assert told == [("lamp", "rejected", False, 1), ("delay", "expired", False, 2), ("lamp", "delivered", True, 2)]
    assert [receipt["destinations"] for receipt in engine.receipts] == [["client:delay"], ["client:lamp"], []]
    told = [(row["client_id"], row["transition"]) for row in engine.ledger if row.get("message_id") == "m"]
    assert told == [
        ("lamp", "accepted"),
        ("lamp", "sent"),
        ("lamp", "refused"),
        ("lamp", "finished"),
        ("lamp", "dead_lettered"),
        ("delay", "returned"),
        ("delay", "queued"),
        ("delay", "finished"),
        ("delay", "dead_lettered"),
        ("lamp", "returned"),
        ("lamp", "sent"),
        ("lamp", "finished"),
    ]


def test_a_cycle_without_a_rejection_ends_at_once_and_is_reported_once() -> None:
    """The two queues have a time to live and lead to each other."""
    engine = EngineModel(
        policies=(
            Policy(clients="a", dead_letter_exchange="", dead_letter_routing_key="b", message_ttl_ms=1_000),
            Policy(clients="b", dead_letter_exchange="", dead_letter_routing_key="a", message_ttl_ms=1_000),
        )
    )
    engine.send("a", "m").after(10)
    assert engine.queued("a") == engine.queued("b") == []
    drops = [row for row in engine.ledger if row["transition"] == "dead_letter_dropped"]
    assert [(row["client_id"], row["detail"]) for row in drops] == [("b", "client:a: it would close a cycle")]
    assert [(receipt["client_id"], receipt["outcome"]) for receipt in engine.receipts] == [
        ("a", "expired"),
        ("b", "dead_letter_unroutable"),
    ]


def test_an_exchange_that_nobody_declared_drops_the_message_and_says_so() -> None:
    engine = EngineModel().connect("a", answer=REFUSED).send("a", "m", ("x-dead-letter-exchange", b"nowhere"))
    assert engine.read() == []
    (receipt,) = engine.receipts
    assert receipt["outcome"] == "dead_letter_unroutable"
    assert receipt["detail"] == "rejected: the exchange 'nowhere' is declared nowhere"
    assert receipt["final"]
    rows = [(row["transition"], row.get("outcome")) for row in engine.ledger if row.get("message_id")]
    assert rows[-2:] == [("finished", "rejected"), ("dead_letter_dropped", "rejected")]


def test_an_exchange_without_a_binding_for_the_key_drops_the_message() -> None:
    engine = EngineModel(exchanges=(direct("x", other="topic:parking"),)).connect("a", answer=REFUSED)
    engine.send("a", "m", ("x-dead-letter-exchange", b"x"))
    assert engine.receipts[0]["detail"] == "rejected: the exchange 'x' has no binding for 'a'"


def test_headers_override_the_policy_of_the_first_queue_only() -> None:
    engine = EngineModel(
        policies=(
            Policy(clients="a", dead_letter_exchange="policy"),
            Policy(clients="b", dead_letter_exchange="second", message_ttl_ms=1_000),
        ),
        exchanges=(
            direct("own", k="client:b", a="topic:wrong"),
            fanout("policy", "topic:wrong"),
            direct("second", k="topic:parking"),
        ),
    )
    engine.connect("a", answer=REFUSED).send("a", "m", ("x-dead-letter-exchange", b"own"), ("x-dead-letter-routing-key", b"k"))
    engine.after(1)
    assert engine.read("parking") == ["m"]
    assert engine.read("wrong") == []
    assert [(death["exchange"], death["routing-keys"]) for death in engine.deaths("parking")] == [("own", ["k"]), ("", ["a"])]


@pytest.mark.promise("owner-of-policy")
def test_a_header_names_no_exchange_that_the_owner_may_not_write_to() -> None:
    """A header that does not count neither redirects a dead letter nor makes one of a message that the policy drops."""
    policy = Policy(
        clients="a",
        dead_letter_exchange="retry",
        dead_letter_reasons=frozenset({Outcome.REJECTED}),
        owner="ann",
        owner_writes=("retry*",),
    )
    engine = EngineModel(
        policies=(policy,),
        exchanges=(fanout("retry", "topic:retry"), fanout("retry-2", "topic:retry-2"), fanout("secret", "topic:secret")),
    )
    engine.connect("a", answer=REFUSED)
    engine.send("a", "sneaky", ("x-dead-letter-exchange", b"secret"))
    engine.send("a", "allowed", ("x-dead-letter-exchange", b"retry-2"))
    assert (engine.read("retry"), engine.read("retry-2"), engine.read("secret")) == (["sneaky"], ["allowed"], [])
    detail = engine.headers("retry")["x-detail"]
    assert detail.endswith("; x-dead-letter-exchange 'secret' does not count: 'ann' may not write to it")
    assert "x-dead-letter-exchange" not in engine.headers("retry-2")["x-detail"]
    engine.lose_connection("a").send("a", "late", ("expiration", b"1"), ("x-dead-letter-exchange", b"secret"))
    engine.send("a", "late, allowed", ("expiration", b"1"), ("x-dead-letter-exchange", b"retry-2")).after(1)
    assert (engine.read("retry"), engine.read("retry-2"), engine.read("secret")) == (["sneaky"], ["allowed", "late, allowed"], [])


def test_the_end_of_a_session_is_a_death_unless_the_policy_says_otherwise() -> None:
    as_in_rabbitmq = Policy(clients="b", dead_letter_reasons=DEAD_LETTERED - {Outcome.SESSION_ENDED})
    engine = EngineModel(policies=(as_in_rabbitmq,)).send("a", "kept").send("b", "gone").after(7_200)
    assert engine.read() == ["kept"]
    assert engine.deaths()[0]["reason"] == "session_ended"
    assert [receipt["outcome"] for receipt in engine.receipts] == ["session_ended"] * 2


def test_copies_by_cc_and_bcc_arrive_and_bcc_is_shown_to_nobody() -> None:
    engine = EngineModel(
        policies=(Policy(dead_letter_exchange="x"),), exchanges=(direct("x", a="topic:own", c="topic:copy", s="topic:secret"),)
    )
    engine.connect("a", answer=REFUSED).send("a", "m", ("CC", b'["c"]'), ("BCC", b'["s"]'))
    for topic in ("own", "copy", "secret"):
        assert engine.read(topic) == ["m"]
        assert engine.deaths(topic)[0]["routing-keys"] == ["a", "c"]
        assert engine.headers(topic)["CC"] == '["c"]'
        assert "BCC" not in engine.headers(topic)


def test_seven_thousand_copies_are_one_dead_letter() -> None:
    engine = EngineModel(policies=(Policy(dead_letter_exchange=""),)).connect("a", answer=REFUSED)
    ids = json.dumps([f"c{number}" for number in range(7_000)]).encode()
    engine.send("a", "m", ("CC", ids))
    assert (engine.read(), engine.received("a")) == (["m"], [])
    assert "CC name 7000 routing keys: 64 are allowed" in engine.headers()["x-detail"]
    assert [(receipt["outcome"], receipt["final"]) for receipt in engine.receipts] == [("invalid", True)]
    assert not any(engine.queued(f"c{number}") for number in range(7_000))


@pytest.mark.parametrize("clients", [("a",), ("a", "b"), ("a", "b", "c")])
@pytest.mark.promise("dead-letter-limits")
def test_devices_that_reject_each_others_copies_come_to_an_end(clients: tuple[str, ...]) -> None:
    """A rejection closes no cycle, and each death makes a copy for every device: nothing else would end this."""
    engine = EngineModel(policies=(Policy(dead_letter_exchange=""),), max_dead_letters=100)
    for client_id in clients:
        engine.connect(client_id, answer=REFUSED)
    engine.send("a", "m", ("CC", json.dumps(clients).encode()))
    outcomes = engine.receipts
    final = [receipt for receipt in outcomes if receipt["final"]]
    assert len(outcomes) <= 101
    # Two copies with the same deaths in the same queue are one: they differ in nothing.
    merged = [row for row in engine.ledger if row.get("outcome") == "duplicate"]
    copies = 1 + sum(len(receipt["destinations"]) - 1 for receipt in outcomes)
    assert len(final) == len(engine.read()) == copies - len(merged)
    assert all("(session.max_dead_letters)" in receipt["detail"] for receipt in final)
    assert all("client refused it" in receipt["detail"] for receipt in outcomes)
    dropped = [row for row in engine.ledger if row["transition"] == "dead_letter_dropped"]
    assert len(dropped) == len(final)
    assert {receipt["outcome"] for receipt in outcomes} == {"rejected"}
    assert engine.run().receipts == outcomes


def test_a_death_is_copied_to_so_many_bytes_and_not_to_more() -> None:
    """A message of 300 KiB costs five times as much for each further destination."""
    names = [f"c{number}" for number in range(21)]
    for count, copies in ((20, 20), (21, 0)):
        ids = json.dumps(names[:count]).encode()
        engine = EngineModel(policies=(Policy(clients="a", dead_letter_exchange=""),), max_mqueue_bytes=0, max_inflight=1)
        engine.reconfigure(limits=RecordLimits(max_payload_bytes=300 << 10))
        engine.connect("a", answer=REFUSED).send("a", "m" * (300 << 10), ("CC", ids), topic="c0")
        assert sum(len(engine.queued(name)) for name in names) == copies
        assert len(engine.read()) == (0 if copies else 1)
        (receipt,) = engine.receipts
        assert receipt["final"] is not bool(copies)
        assert copies or "to 21 destinations, which count as 1001" in receipt["detail"]


@pytest.mark.parametrize("ids", [("ok", "x" * 1_025), ("ok", "\x00engine-start", "a\x00")])
def test_copies_for_what_is_no_client_id_end_in_the_dead_letter_topic(ids: tuple[str, ...]) -> None:
    """No device can have such an id, and one of them is the engine's own key, whose records are for no session."""
    engine = EngineModel(policies=(Policy(clients="a", dead_letter_exchange=""),)).connect("a", answer=REFUSED)
    engine.send("a", "m", ("CC", json.dumps(ids).encode()), topic="ok")
    assert (engine.queued("ok"), engine.read()) == (["m"], ["m"])
    (receipt,) = engine.receipts
    assert receipt["destinations"] == ["client:ok", "topic:inflight.dead-letters"]
    assert f"{len(ids) - 1} of {len(ids)} destinations are no client ids" in receipt["detail"]
    assert f"{len(ids) - 1} of {len(ids)} destinations" in engine.headers()["x-detail"]


def test_a_copy_that_no_record_can_carry_ends_with_a_final_receipt() -> None:
    """It was accepted before the limits were lowered."""
    engine = EngineModel(policies=(Policy(clients="a", dead_letter_exchange=""),), max_inflight=1)
    engine.send("a", "m" * 200_000, topic="b")
    engine.reconfigure(
        limits=RecordLimits(max_payload_bytes=1_000, max_record_bytes=150_000), session=SessionSettings(max_mqueue_len=1)
    )
    engine.send("a", "newer")
    (receipt,) = engine.receipts
    assert (receipt["outcome"], receipt["final"]) == ("maxlen", True)
    assert receipt["destinations"] == ["topic:inflight.dead-letters"]
    assert "150000 are allowed (engine.max_record_bytes)" in receipt["detail"]
    assert (engine.queued("b"), engine.headers()["x-truncated-from-bytes"]) == ([], "200000")


def test_a_message_that_has_used_its_life_up_may_still_be_parked() -> None:
    policies = (
        Policy(clients="lamp", dead_letter_exchange="", dead_letter_limit=2, limit_exchange="parking"),
        Policy(clients="other", dead_letter_exchange="parking"),
    )
    engine = EngineModel(policies=policies, exchanges=(fanout("parking", "topic:parking"),), max_dead_letters=2)
    engine.connect("lamp", answer=REFUSED).send("lamp", "on")
    assert (engine.read("parking"), engine.read()) == (["on"], [])


def test_a_dead_letter_has_no_time_to_live_and_remembers_the_one_it_had() -> None:
    engine = EngineModel(policies=(Policy(clients="a", dead_letter_exchange="", dead_letter_routing_key="b"),))
    engine.send("a", "m", ("expiration", b"1000")).after(5_000)
    assert engine.queued("b") == ["m"]
    engine.connect("b", answer=REFUSED)
    assert [death.get("original-expiration") for death in engine.deaths()] == [None, "1000"]
    assert "expiration" not in engine.headers()
    assert engine.devices["b"].received[0].expiry_interval_s is None


def test_the_time_to_live_of_a_queue_is_nothing_that_the_device_sees() -> None:
    engine = EngineModel(policies=(Policy(message_ttl_ms=60_000),)).send("a", "m").connect("a")
    assert engine.devices["a"].received[0].expiry_interval_s is None


def test_the_shorter_one_of_two_times_to_live_counts() -> None:
    engine = EngineModel(policies=(Policy(message_ttl_ms=2_000),))
    engine.send("a", "long", ("expiration", b"9000")).send("a", "short", ("expiration", b"1000")).send("a", "none")
    engine.after(1)
    assert engine.read() == ["short"]
    engine.after(1)
    assert engine.read() == ["short", "long", "none"]
    assert [engine.deaths(index=index)[0].get("original-expiration") for index in range(3)] == ["1000", "9000", None]


@pytest.mark.parametrize(("policy", "headers"), [(Policy(message_ttl_ms=0), ()), (Policy(), (("expiration", b"0"),))])
def test_a_time_to_live_of_0_delivers_at_once_or_not_at_all(policy: Policy, headers: tuple[tuple[str, bytes], ...]) -> None:
    engine = EngineModel(policies=(policy,)).send("a", "nobody there", *headers)
    assert engine.read() == ["nobody there"]
    engine.connect("a").send("a", "here", *headers)
    assert engine.received("a") == ["here"]


def test_reasons_that_a_policy_leaves_out_end_in_the_receipt_alone() -> None:
    engine = EngineModel(policies=(Policy(dead_letter_reasons=frozenset({Outcome.REJECTED})),), max_mqueue_len=1)
    engine.send("a", "dropped").send("a", "rejected").connect("a", answer=REFUSED)
    assert engine.read() == ["rejected"]
    assert [receipt["outcome"] for receipt in engine.receipts] == ["maxlen", "rejected"]
    assert all(receipt["final"] for receipt in engine.receipts)


def test_a_full_queue_that_refuses_gives_the_new_message_to_the_exchange() -> None:
    engine = EngineModel(
        policies=(Policy(dead_letter_exchange="x"),),
        exchanges=(fanout("x", "topic:parking"),),
        max_mqueue_len=1,
        overflow=Overflow.REJECT,
    )
    engine.send("a", "first").send("a", "second")
    assert (engine.queued("a"), engine.read("parking")) == (["first"], ["second"])


def test_a_republished_dead_letter_does_not_bring_its_history_along() -> None:
    """A backend takes what it read from a dead-letter topic and sends it again, with all headers."""
    engine = EngineModel().connect("a", answer=REFUSED).send("a", "m")
    again = tuple((header.key, header.value or b"") for header in engine.records()[0].headers or () if header.key != "mqtt-topic")
    engine.send("a", "m", *(pair for pair in again if pair[0] != "message-id"))
    assert engine.deaths()[0]["count"] == 1
    assert len(engine.deaths()) == 1
    headers = engine.headers()
    assert json.loads(headers["x-received-death"])[0]["count"] == 1
    assert headers["x-received-first-death-queue"] == "a"
    assert headers["x-received-last-death-reason"] == "rejected"


def test_a_forged_history_does_not_break_a_cycle_nor_make_one() -> None:
    forged = json.dumps([{"queue": "b", "reason": "expired", "count": 9, "time": 1, "exchange": "", "routing-keys": ["b"]}])
    engine = EngineModel(policies=(Policy(clients="a", dead_letter_exchange="", dead_letter_routing_key="b"),))
    engine.connect("a", answer=REFUSED).send("a", "m", ("x-death", forged.encode()), ("x-first-death-queue", b"b"))
    assert engine.queued("b") == ["m"]


def test_a_message_that_breaks_the_contract_gets_into_no_queue() -> None:
    engine = EngineModel(
        policies=(Policy(dead_letter_exchange="both"),), exchanges=(fanout("both", "client:b", "topic:parking"),)
    )
    engine.send("a", "m", ("mqtt-qos", b"7"), ("x-dead-letter-exchange", b"nowhere"))
    assert engine.read() == engine.read("parking") == ["m"]
    assert engine.queued("b") == []
    assert engine.deaths("parking")[0]["reason"] == "invalid"


def _lives_and_deaths(crash_at: tuple[int, int] | None) -> EngineModel:
    """Six messages that overflow, expire, are rejected, wait, come to another device, are delivered there or parked."""
    engine = EngineModel(
        policies=(
            Policy(clients="lamp", dead_letter_exchange="retry", message_ttl_ms=5_000),
            Policy(clients="delay", dead_letter_exchange="", dead_letter_routing_key="spare", message_ttl_ms=1_000),
            Policy(clients="spare", dead_letter_exchange="parking"),
        ),
        exchanges=(fanout("retry", "client:delay"), fanout("parking", "topic:parking")),
        profiles={"lamp": SessionSettings(max_mqueue_len=3)},
    )
    engine.crash_at = crash_at
    engine.connect("spare", answer=lambda publish: REFUSED if publish.payload in (b"m0", b"m3") else 0)
    for number in range(6):
        headers = [("message-id", b"m%d" % number)]
        engine.send("lamp", f"m{number}", *headers, *([("expiration", b"500")] if number == 4 else []))
    engine.after(0.6)
    engine.connect("lamp", answer=lambda publish: REFUSED if publish.payload == b"m3" else 0)
    return engine.after(30)


@pytest.mark.no_cover  # it takes long, and reaches no line of its own
def test_a_crash_at_any_record_leaves_no_message_behind() -> None:
    """The engine crashes after every number of records of every micro-batch. Each message is delivered or dead-lettered."""
    undisturbed = _lives_and_deaths(None)
    assert {receipt["outcome"] for receipt in undisturbed.receipts} == {"maxlen", "expired", "rejected", "delivered"}
    parked, delivered = sorted(undisturbed.read("parking")), _delivered(undisturbed)
    assert sorted([*parked, *delivered]) == [f"m{number}" for number in range(6)]
    received = undisturbed.received("lamp"), sorted(undisturbed.received("spare"))
    crashes = 0
    for activation, records in enumerate(undisturbed.written, start=1):
        for written in range(records + 1):
            engine = _lives_and_deaths((activation, written))
            where = f"crash at activation {activation} after {written} records"
            assert _delivered(engine) == delivered, where
            assert sorted(set(engine.read("parking"))) == parked, where
            assert engine.queued("lamp") == engine.queued("delay") == [], where
            assert (engine.received("lamp"), sorted(engine.received("spare"))) == received, where
            crashes += 1
    assert crashes > 50


def _delivered(engine: EngineModel) -> set[str]:
    return {receipt["message_id"] for receipt in engine.receipts if receipt["outcome"] == "delivered"}


def test_records_that_are_in_kafka_twice_put_no_message_twice_in_a_queue() -> None:
    engine = EngineModel(
        policies=(
            Policy(clients="lamp", dead_letter_exchange="", dead_letter_routing_key="delay"),
            Policy(clients="delay", dead_letter_exchange="", dead_letter_routing_key="b", message_ttl_ms=1_000),
        ),
        copies=2,
    )
    engine.connect("lamp", answer=lambda publish: None).send("lamp", "m")
    engine.lose_connection("lamp")
    engine.connect("lamp", answer=REFUSED).after(2)
    assert engine.queued("b") == ["m"]


def test_a_copy_of_a_dead_letter_is_known_after_the_first_has_left() -> None:
    """A micro-batch was executed again, and what it has written is read in two others, a second apart."""
    engine = EngineModel(
        policies=(
            Policy(clients="lamp", dead_letter_exchange="", dead_letter_routing_key="delay"),
            Policy(clients="delay", dead_letter_exchange="", dead_letter_routing_key="b", message_ttl_ms=1_000),
        )
    )
    engine.connect("lamp", answer=REFUSED).send("lamp", "m")
    (letter,) = (record for record in engine.records("inflight.events") if record.key == b"delay")
    engine.after(2)
    assert (engine.queued("delay"), engine.queued("b")) == ([], ["m"])
    engine.repeat(letter).after(2)
    assert (engine.queued("delay"), engine.queued("b")) == ([], ["m"])


def test_the_history_survives_any_number_of_queues() -> None:
    hops = [f"q{number}" for number in range(30)]
    policies = [
        Policy(clients=queue, dead_letter_exchange="", dead_letter_routing_key=following, message_ttl_ms=1_000)
        for queue, following in pairwise(hops)
    ]
    engine = (
        EngineModel(policies=policies, profiles={"*": SessionSettings(session_expiry_interval_s=NEVER_S)})
        .send("q0", "m")
        .after(60)
    )
    assert engine.queued("q29") == ["m"]
    engine.connect("q29", answer=REFUSED)
    assert [death["queue"] for death in engine.deaths()] == hops[::-1]
    assert engine.headers()["x-first-death-queue"] == "q0"


def test_a_receipt_reaches_the_client_that_the_response_topic_names() -> None:
    engine = EngineModel().connect("app", answer=0).connect("lamp")
    engine.send("lamp", "on", ("response-topic", b"client:app"), ("correlation-data", b"\x00\xff"), ("message-id", b"m"))
    (told,) = engine.devices["app"].received
    assert (told.topic, told.properties.correlation_data) == ("client:app", b"\x00\xff")
    assert told.properties.content_type == "application/json"
    receipt = json.loads(told.payload)
    assert (receipt["message_id"], receipt["client_id"], receipt["outcome"]) == ("m", "lamp", "delivered")
    assert engine.devices["lamp"].received[0].properties.response_topic == "client:app"


def test_a_receipt_for_an_absent_client_waits_and_comes_once() -> None:
    engine = EngineModel(copies=2).connect("lamp", answer=REFUSED)
    engine.send("lamp", "on", ("response-topic", b"client:app"))
    assert len(engine.queued("app")) == 1
    engine.connect("app")
    assert json.loads(engine.received("app")[0])["outcome"] == "rejected"


def test_a_response_topic_that_names_no_client_sends_no_receipt_to_anybody() -> None:
    engine = (
        EngineModel()
        .connect("lamp")
        .send("lamp", "on", ("response-topic", b"answers/lamp"))
        .send("lamp", "off", ("response-topic", b"client:"))
    )
    assert engine.records("inflight.messages") == []


@pytest.mark.no_cover
def test_a_repeated_micro_batch_delivers_each_of_many_dead_letters_once() -> None:
    """The dead letters outnumber any deduplication window; the engine crashes after it has written most of them."""
    count = 300
    crowd = SessionSettings(max_mqueue_len=0, max_mqueue_bytes=0, deduplication_window=10)
    engine = EngineModel(
        policies=(Policy(clients="a", dead_letter_exchange="", dead_letter_routing_key="b", message_ttl_ms=60_000),),
        profiles={"*": crowd},
    )
    for number in range(count):
        engine.send("a", f"m{number}")
    engine.crash_at = (len(engine.written) + 1, count - 50)
    engine.after(60)
    assert engine.queued("b") == [f"m{number}" for number in range(count)]
