"""Devices that say no, and transactions that are taken back: Producer → Kafka → engine → gateway → sockets, all real.

One `inflight up` serves all tests (conftest.py). Its lamps have the delayed retry of conf/policies.toml.

What is compared are the times that the session has recorded in its ledger, never the clock of the test.
"""

import contextlib
import json
import re
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import confluent_kafka
import pytest
from prometheus_client import CollectorRegistry

from inflight.producer import Producer, TransactionFailed
from state.outbound.retry import backoff_wait_ms
from state.settings import BackoffSettings
from streaming.engine.progress import last_progress
from tests.integration.history.history_device import AnsweringDevice
from tests.integration.up.conftest import SharedUp
from tests.integration.up.topics_of_up import await_gone, await_receipts, ledger_of, records_of
from tests.integration.up.wire_device import WireDevice
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.micro_batches import await_batches
from tests.support.waiting import wait_until

DELIVERY_LIMIT = 5
"""The delivery limit of the clients called broken-*."""
CRASH_LIMIT = 3
"""The crash limit of the clients called crashing-*."""
QOS = (1, 2)
DELAY_S = 1.0
"""Seconds before a lamp gets a message again."""
PARKED = "lamps.parked"


@pytest.fixture(scope="module")
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture(scope="module")
def producer(up: SharedUp, registry: CollectorRegistry) -> Iterator[Producer]:
    with Producer(up.kafka, registry=registry) as made:
        yield made


def rows_of(rows: list[dict[str, Any]], transition: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["transition"] == transition]


def check_new_attempts(device: AnsweringDevice, payload: bytes, count: int) -> None:
    """[MQTT-4.4.0-2] Each attempt was a PUBLISH of its own: no DUP, another packet id."""
    seen = [publish for publish in device.seen if publish.payload == payload]
    assert len(seen) == count
    assert not any(publish.dup for publish in seen)
    assert len({publish.packet_id for publish in seen}) == count


def dead_letter(up: SharedUp, message_id: str) -> dict[str, str]:
    """The headers of the message's only dead letter."""
    letters = [dict(record.headers) for record in records_of(up, "inflight.dead-letters")]
    (headers,) = (letter for letter in letters if letter["message-id"] == message_id.encode())
    return {name: value.decode() for name, value in headers.items()}


def test_0x97_backs_one_device_off_by_1_s_and_1_6_times_as_long(up: SharedUp, producer: Producer) -> None:
    refusals = 4

    def answer(topic: str, times: int) -> int:
        return 0x97 if times <= refusals else 0

    with contextlib.ExitStack() as stack:
        busy = {qos: stack.enter_context(AnsweringDevice(*up.mqtt, f"busy-{qos}", answer)) for qos in QOS}
        stack.enter_context(AnsweringDevice(*up.mqtt, "calm", lambda topic, times: 0))
        for qos in QOS:
            producer.send(f"busy-{qos}", "t", b"x", qos=qos, message_id=f"throttled-{qos}")
        for qos in QOS:
            wait_until(lambda qos=qos: rows_of(ledger_of(up, f"throttled-{qos}"), "refused"), "the first refusal is recorded")
        calm = [producer.send("calm", "t", b"%d" % number, message_id=f"calm-{number}").message_id for number in range(20)]
        others = await_receipts(up, *calm)
        finished = await_receipts(up, *(f"throttled-{qos}" for qos in QOS))

        for qos, receipt in zip(QOS, finished, strict=True):
            assert (receipt["outcome"], receipt["attempts"], receipt["reason_code"]) == ("delivered", refusals + 1, 0)
            check_new_attempts(busy[qos], b"x", refusals + 1)
            check_backoff(ledger_of(up, f"throttled-{qos}"), f"busy-{qos}/throttled-{qos}", refusals)
        assert {(receipt["outcome"], receipt["attempts"]) for receipt in others} == {("delivered", 1)}
        assert max(receipt["outcome_ms"] for receipt in others) <= min(receipt["outcome_ms"] for receipt in finished)


def check_backoff(rows: list[dict[str, Any]], jitter_key: str, refusals: int) -> None:
    """protocol.md, section 5, from the recorded times: the length of each wait, and no attempt before its end."""
    sent, refused = rows_of(rows, "sent"), rows_of(rows, "refused")
    assert [row["attempt"] for row in sent] == list(range(1, refusals + 2))
    assert [(row["attempt"], row["reason_code"]) for row in refused] == [(n, 0x97) for n in range(1, refusals + 1)]
    waits_ms = []
    for attempt, refusal, following in zip(sent, refused, sent[1:], strict=False):
        told = re.fullmatch(r"next attempt (\d+) ms after the start of this one, in (\d+) ms", refusal["detail"])
        assert told is not None, refusal["detail"]
        wait_ms, left_ms = int(told[1]), int(told[2])
        due_ms = attempt["time_ms"] + wait_ms
        assert left_ms == max(0, due_ms - refusal["time_ms"])
        assert following["time_ms"] >= due_ms
        waits_ms.append(wait_ms)
    again = [backoff_wait_ms(n, BackoffSettings(), jitter_key=f"{jitter_key}/{n}") for n in range(1, refusals + 1)]
    assert waits_ms == again, "the jitter is not that of the client, the message and the attempt"


def test_0x80_is_answered_at_once_up_to_the_delivery_limit(up: SharedUp, producer: Producer) -> None:
    def answer(topic: str, times: int) -> int:
        return 0x80 if topic == "bad" else 0

    with contextlib.ExitStack() as stack:
        devices = {qos: stack.enter_context(AnsweringDevice(*up.mqtt, f"broken-{qos}", answer)) for qos in QOS}
        for qos in QOS:
            producer.send(f"broken-{qos}", "bad", b"bad", qos=qos, message_id=f"bad-{qos}")
        given_up = await_receipts(up, *(f"bad-{qos}" for qos in QOS))
        for qos, receipt in zip(QOS, given_up, strict=True):
            assert (receipt["outcome"], receipt["attempts"]) == ("delivery_limit", DELIVERY_LIMIT)
            assert receipt["reason_code"] == 0x80
            check_new_attempts(devices[qos], b"bad", DELIVERY_LIMIT)

            rows = ledger_of(up, f"bad-{qos}")
            sent, refused = rows_of(rows, "sent"), rows_of(rows, "refused")
            assert [row["attempt"] for row in refused] == list(range(1, DELIVERY_LIMIT + 1))
            assert {row["reason_code"] for row in refused} == {0x80}
            told = ["next attempt at once"] * (DELIVERY_LIMIT - 1) + ["it was the last attempt"]
            assert [row["detail"] for row in refused] == told
            # At once: in the activation that got to know of the refusal.
            assert [row["batch_ms"] for row in sent[1:]] == [row["batch_ms"] for row in refused[:-1]]
            (end,) = rows_of(rows, "finished")
            assert (end["outcome"], end["batch_ms"]) == ("delivery_limit", refused[-1]["batch_ms"])

            letter = dead_letter(up, f"bad-{qos}")
            assert (letter["x-first-death-reason"], letter["x-first-death-queue"]) == ("delivery_limit", f"broken-{qos}")
        # The device lives on.
        for qos in QOS:
            producer.send(f"broken-{qos}", "good", b"good", qos=qos, message_id=f"good-{qos}")
        good = await_receipts(up, *(f"good-{qos}" for qos in QOS))
        assert {(receipt["outcome"], receipt["attempts"]) for receipt in good} == {("delivered", 1)}


def test_a_device_of_mqtt_5_that_answers_late_keeps_its_connection(up: SharedUp, producer: Producer) -> None:
    """Its `retry_interval` is over when it answers, as the ledger says (docs/decisions/0040)."""
    with WireDevice(up.mqtt, "slow-to-answer", 5) as device:
        for name in ("late-1", "late-2"):
            producer.send("slow-to-answer", "t", name.encode(), qos=1, message_id=name)
            publish = device.receive()
            wait_until(lambda name=name: rows_of(ledger_of(up, name), "overdue"), f"{name} is overdue")
            device.finish(publish)
            (receipt,) = await_receipts(up, name)
            assert (receipt["outcome"], receipt["attempts"]) == ("delivered", 1)


@pytest.mark.parametrize("is_taken_over", [False, True], ids=["lost", "taken over"])
def test_a_message_that_kills_its_device_does_not_starve_others(up: SharedUp, producer: Producer, is_taken_over: bool) -> None:
    """`crash_limit` is 3 for this client. Its connection ends by a reset, or by the next one because the device has restarted."""
    name = f"crashing-{int(is_taken_over)}"
    with WireDevice(up.mqtt, name, 4) as device:
        for payload in (b"first", b"poison", b"behind"):  # by the fast path, once the first one has opened it
            producer.send(name, "t", payload, qos=1, message_id=f"{name}-{payload.decode()}")
        device.finish(device.receive())
        left_open = [died_on_poison(device, is_taken_over)]
    for _ in range(CRASH_LIMIT - 1):
        left_open.append(died_on_poison(WireDevice(up.mqtt, name, 4), is_taken_over))
        if not is_taken_over:
            await_gone(up, name)
    with contextlib.ExitStack() as stack:
        for old in left_open:
            stack.callback(old.socket.close)
        with WireDevice(up.mqtt, name, 4) as device:
            while (publish := device.receive()).payload == b"poison":  # the report of a takeover comes behind the replay
                assert is_taken_over
                left_open.append(device)
                device = stack.enter_context(WireDevice(up.mqtt, name, 4))
            assert publish.payload == b"behind"
            device.finish(publish)
    poison, behind = await_receipts(up, f"{name}-poison", f"{name}-behind")
    assert (poison["outcome"], poison["attempts"]) == ("delivery_limit", CRASH_LIMIT)
    assert f"lost {CRASH_LIMIT} connections" in poison["detail"]
    assert behind["outcome"] == "delivered"


def died_on_poison(device: WireDevice, is_taken_over: bool) -> WireDevice:
    """Returns the device, which has got the message; its socket is reset unless it is to be taken over."""
    assert device.receive().payload == b"poison"
    if not is_taken_over:
        device.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        device.socket.close()
    return device


def test_a_transaction_is_delivered_whole_or_not_at_all(up: SharedUp, producer: Producer, registry: CollectorRegistry) -> None:
    doors = ("door-1", "door-2", "door-3")

    def in_the_log(*message_ids: str) -> bool:
        records = records_of(up, "inflight.messages", isolation_level="read_uncommitted")
        return {dict(record.headers)["message-id"].decode() for record in records} >= set(message_ids)

    def engine_goes_on() -> None:
        """Three more micro-batches: an engine that read what is not committed would have it by now."""
        seen = last_progress(up.data_dir)
        assert seen is not None
        await_batches(up.kafka, lambda: (last_progress(up.data_dir) or seen).batch_id, 3)

    def counted(name: str, **labels: str) -> float:
        return registry.get_sample_value(f"inflight_producer_{name}", labels) or 0.0

    sends = counted("sends_total")
    with contextlib.ExitStack() as stack:
        devices = [stack.enter_context(AnsweringDevice(*up.mqtt, door, lambda topic, times: 0)) for door in doors]
        with pytest.raises(RuntimeError, match="changed my mind"), producer.transaction() as transaction:  # noqa: PT012
            unsent = [transaction.send(door, "lock", b"unsent", message_id=f"unsent-{door}") for door in doors]
            raise RuntimeError("changed my mind")
        assert all(isinstance(future.exception(), TransactionFailed) for future in unsent)

        # The Producer writes at the end of its block, so another client shows what the engine does with an open transaction.
        backend = confluent_kafka.Producer(
            {"bootstrap.servers": up.kafka, "transactional.id": "backend-of-the-doors", "partitioner": "murmur2"}
        )
        backend.init_transactions()
        backend.begin_transaction()
        for door in doors:
            headers = [("mqtt-topic", b"lock"), ("message-id", f"aborted-{door}".encode())]
            backend.produce("inflight.messages", b"aborted", door, headers=headers)
        backend.flush()
        wait_until(lambda: in_the_log(*(f"aborted-{door}" for door in doors)), "the records are in the log, uncommitted")
        engine_goes_on()
        assert [device.received for device in devices] == [[], [], []]
        backend.abort_transaction()

        with producer.transaction() as transaction:
            for number in (1, 2):
                for door in doors:
                    transaction.send(door, "lock", b"%d" % number, qos=number, message_id=f"committed-{door}-{number}")
        committed = [f"committed-{door}-{number}" for door in doors for number in (1, 2)]
        receipts = await_receipts(up, *committed)
        assert {(receipt["outcome"], receipt["attempts"]) for receipt in receipts} == {("delivered", 1)}
        assert [device.received for device in devices] == [[b"1", b"2"]] * 3
    assert [counted("transactions_total", outcome=outcome) for outcome in ("committed", "aborted", "in_doubt")] == [1, 1, 0]
    assert (counted("sends_total") - sends, counted("pending")) == (len(committed), 0)
    # What is committed lies behind what was aborted in the same partition, so the engine has passed it.
    assert [ledger_of(up, f"{kind}-{door}") for kind in ("unsent", "aborted") for door in doors] == [[]] * 6


def test_a_rejected_message_comes_back_three_times_and_is_then_parked(up: SharedUp, producer: Producer) -> None:
    arrivals: dict[str, list[float]] = defaultdict(list)

    def stubborn(topic: str, times: int) -> int:
        arrivals["lamp-stubborn"].append(time.monotonic())
        return 0x87

    def moody(topic: str, times: int) -> int:
        arrivals["lamp-moody"].append(time.monotonic())
        return 0x87 if times < 3 else 0

    with AnsweringDevice(*up.mqtt, "lamp-stubborn", stubborn) as one, AnsweringDevice(*up.mqtt, "lamp-moody", moody) as other:
        for client_id in ("lamp-stubborn", "lamp-moody"):
            producer.send(client_id, "lamp/switch", b"on", message_id=f"on-{client_id}", user_properties=(("room", "7"),))
        (parked,) = read_topic(up.kafka, PARKED, lambda records: len(records) >= 1)
        headers = dict(parked.headers)
        other.await_count(3)
        receipts = receipts_of_lamps(
            read_topic(up.kafka, "inflight.receipts", lambda found: len(receipts_of_lamps(found)) >= 7 + 5)
        )

    assert (one.received, other.received) == ([b"on"] * 4, [b"on"] * 3)
    for times in arrivals.values():
        assert min(later - earlier for earlier, later in pairwise(times)) >= DELAY_S
    assert (parked.value, headers["message-id"], headers["mqtt-topic"]) == (b"on", b"on-lamp-stubborn", b"lamp/switch")
    assert headers["user-room"] == b"7"
    deaths = [(death["queue"], death["reason"], death["count"]) for death in json.loads(headers["x-death"])]
    assert deaths == [("lamp-stubborn", "rejected", 4), ("delay/lamp-stubborn", "expired", 3)]
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == (b"lamp-stubborn", b"rejected")

    told = {
        message_id: [
            (receipt["client_id"], receipt["outcome"], receipt["final"])
            for receipt in sorted(receipts, key=lambda receipt: (receipt["deaths"], receipt["outcome_ms"]))
            if receipt["message_id"] == message_id
        ]
        for message_id in ("on-lamp-stubborn", "on-lamp-moody")
    }
    assert told["on-lamp-stubborn"] == [*a_round("lamp-stubborn") * 3, ("lamp-stubborn", "rejected", True)]
    assert told["on-lamp-moody"] == [*a_round("lamp-moody") * 2, ("lamp-moody", "delivered", True)]


def a_round(client_id: str) -> list[tuple[str, str, bool]]:
    """The receipts of a refusal and of the wait after it."""
    return [(client_id, "rejected", False), (f"delay/{client_id}", "expired", False)]


def receipts_of_lamps(records: list[ReadRecord]) -> list[dict[str, Any]]:
    receipts = [json.loads(record.value or b"") for record in records]
    return [receipt for receipt in receipts if receipt["message_id"].startswith("on-lamp-")]
