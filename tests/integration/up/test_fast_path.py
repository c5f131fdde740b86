"""The fast path through everything: paho devices, gateway, Kafka, engine, receipts."""

import contextlib
import itertools
import os
import signal
import time
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from prometheus_client import CollectorRegistry

from inflight import Producer
from inflight.demo.up import UpProcess
from state.events import PubAckReceived, PubCompReceived
from state.records.events import decode_events
from state.records.leases import decode_lease
from tests.integration.up.conftest import SharedUp
from tests.integration.up.paho_device import PahoDevice
from tests.integration.up.paho_subscriber import PahoSubscriber
from tests.integration.up.topics_of_up import await_final_receipts, await_receipts, ledger_of
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.waiting import wait_until

_ids = itertools.count(1)
ATTEMPTS = 20
DEVICES = 10
AWAY_S = int(os.environ.get("INFLIGHT_ENGINE_AWAY_S", "20"))
WINDOW, WAITING = 32, 4
"""`session.max_inflight`, and messages beyond it."""
AWAY = 20
"""Messages that come while a device is away."""
WITHIN_S = 10.0
"""Seconds that a busy machine may be late. A micro-batch would never come."""


def backend(up: SharedUp) -> Producer:
    return Producer(up.kafka, registry=CollectorRegistry())


def send(producer: Producer, client_id: str, qos: int) -> str:
    message_id = f"{client_id}-{next(_ids)}"
    producer.send(client_id, "cmd/x", message_id, qos=qos, message_id=message_id)
    return message_id


def arrived(device: PahoDevice, message_id: str) -> None:
    wait_until(lambda: any(message.payload == message_id.encode() for message in device.messages), f"{message_id} arrives")
    message = next(message for message in device.messages if message.payload == message_id.encode())
    device.client.ack(message.mid, message.qos)


def test_the_engine_of_up_may_be_lazy_because_its_gateway_wakes_it_up(up: SharedUp) -> None:
    """The other tests here find that nothing is slower for it."""

    def wakes(records: list[ReadRecord]) -> bool:
        return any(record.value is not None and decode_lease(record.value).wakes for record in records)

    assert wakes(read_topic(up.kafka, "inflight.leases", wakes))
    assert read_topic(up.kafka, "inflight.wake-ups", bool)


@pytest.mark.parametrize("qos", [1, 2])
def test_the_receipt_of_a_fast_message_says_that_it_was_fast(up: SharedUp, qos: int) -> None:
    client_id = f"fast-{qos}"
    with PahoDevice(up, client_id, paho.MQTTv5) as device, backend(up) as producer:  # type: ignore[arg-type]
        first = send(producer, client_id, qos)
        arrived(device, first)
        (receipt,) = await_receipts(up, first)
        assert (receipt["outcome"], receipt["fast_path"]) == ("delivered", False), "a client's first message is slow"
        for _ in range(ATTEMPTS):  # the gateway may be under pressure, and the grant may not be there yet
            message_id = send(producer, client_id, qos)
            arrived(device, message_id)
            (receipt,) = await_receipts(up, message_id)
            assert receipt["outcome"] == "delivered"
            transitions = [row["transition"] for row in ledger_of(up, message_id)]
            # Where the session has read the message before it heard that it was sent, its own copy was dropped at the gateway.
            if receipt["fast_path"] and "sent" not in transitions:
                break
        assert receipt["fast_path"]
        assert receipt["accepted_ms"] <= receipt["first_sent_ms"] <= receipt["outcome_ms"]
        assert receipt["attempts"] == 1
        assert transitions[:2] == ["fast_sent", "accepted"] or transitions[:2] == ["accepted", "fast_sent"]
        assert transitions[-1] == "finished"
        assert "sent" not in transitions
    assert len([message for message in device.messages if message.payload == message_id.encode()]) == 1


@pytest.mark.parametrize("qos", [1, 2])
def test_a_receipt_has_the_time_at_which_the_answer_came(up: SharedUp, qos: int) -> None:
    client_id, own_times = f"timed-{qos}", list[int]()
    with PahoDevice(up, client_id, paho.MQTTv5) as device, backend(up) as producer:  # type: ignore[arg-type]
        for _ in range(5):  # the first one goes by a micro-batch
            message_id = send(producer, client_id, qos)
            arrived(device, message_id)
            (receipt,) = await_receipts(up, message_id)
            records = [record for record in read_topic(up.kafka, "inflight.events") if record.key == client_id.encode()]
            answers = {PubAckReceived, PubCompReceived}
            logged = [record for record in records if answers & {type(event) for event in decode_events(record.value or b"")}]
            answered = next(event for event in decode_events(logged[-1].value or b"") if type(event) in answers)
            assert receipt["outcome_ms"] == min(answered.logged_ms or logged[-1].timestamp_ms, logged[-1].timestamp_ms)
            own_times.append(answered.logged_ms)
            (finished,) = [row for row in ledger_of(up, message_id) if row["transition"] == "finished"]
            assert (finished["time_ms"], finished["batch_ms"]) == (receipt["outcome_ms"], receipt["recorded_ms"])
            assert receipt["accepted_ms"] <= receipt["first_sent_ms"] <= receipt["outcome_ms"] <= receipt["recorded_ms"]
    assert any(own_times), "an acknowledgement on the fast path is appended later than it came"


def test_messages_that_wait_in_the_queue_return_to_the_fast_path(up: SharedUp) -> None:
    """The device acknowledges nothing until some messages wait. Then it gets these without a micro-batch."""
    client_id = "returns"
    with PahoDevice(up, client_id, paho.MQTTv5) as device, backend(up) as producer:  # type: ignore[arg-type]
        arrived(device, send(producer, client_id, 1))
        for _ in range(ATTEMPTS):
            sent = [send(producer, client_id, 1) for _ in range(WINDOW + WAITING)]
            waiting = sent[WINDOW:]
            wait_until(lambda: transitions_of(up, waiting[-1]), "the session has read the last one")  # noqa: B023
            for message_id in sent:
                arrived(device, message_id)
            if all(receipt["fast_path"] for receipt in await_receipts(up, *waiting)):
                break
        assert all("queued" in transitions_of(up, message_id) for message_id in waiting)
        assert all(receipt["fast_path"] and receipt["attempts"] == 1 for receipt in await_receipts(up, *waiting))
        payloads = [message.payload.decode() for message in device.messages]
        assert payloads == sorted(payloads, key=lambda payload: int(payload.rpartition("-")[2])), "in order, and once"
        assert len(payloads) == len(set(payloads))


def transitions_of(up: SharedUp, message_id: str) -> list[str]:
    return [row["transition"] for row in ledger_of(up, message_id)]


@pytest.mark.promise("engine-stands-still")
@pytest.mark.faults
@pytest.mark.timeout(240)
def test_a_device_that_comes_back_is_served_while_the_engine_is_away(tmp_path: Path) -> None:
    """It gets what has come meanwhile, in order and once, and its SUBSCRIBE is answered. The engine agrees with all of it."""
    with contextlib.ExitStack() as all_of_it:
        running = all_of_it.enter_context(UpProcess(tmp_path / "data"))
        up = SharedUp(running.mqtt, running.kafka, running.data_dir)
        publisher = all_of_it.enter_context(PahoSubscriber(up.mqtt, "publisher"))
        for attempt in range(ATTEMPTS):  # a burst of other messages, or a slow router, leaves a client to the session
            topic, client_id = f"away/{attempt}", f"away-{attempt}"
            with PahoSubscriber(up.mqtt, client_id, 4, keeps_session=True) as device:
                device.subscribe(topic)
            sent = [b"%d" % number for number in range(AWAY)]
            for payload in sent:
                publisher.publish(topic, payload)
            pid = running.engine_pid()
            assert pid is not None
            os.killpg(pid, signal.SIGSTOP)
            try:
                with PahoSubscriber(up.mqtt, client_id, 4, keeps_session=True) as device:
                    is_served = arrives_within(device, AWAY, WITHIN_S)
                    if is_served:
                        device.subscribe(f"{topic}/more")
                        publisher.publish(f"{topic}/more", b"more")
                        wait_until(lambda: len(device.messages) > AWAY, "a message by the new subscription")
            finally:
                os.killpg(pid, signal.SIGCONT)
            if is_served:
                break
        assert is_served
        with PahoSubscriber(up.mqtt, client_id, 4, keeps_session=True) as again:
            publisher.publish(topic, b"last")
            again.payloads(1)
            came = [message.payload for message in (*device.messages, *again.messages)]
        assert came == [*sent, b"more", b"last"]


def arrives_within(device: PahoSubscriber, count: int, within_s: float) -> bool:
    """Returns False if so many messages have not come by then."""
    try:
        wait_until(lambda: len(device.messages) >= count, "all messages", within_s=within_s)
    except AssertionError:
        return False
    return True


@pytest.mark.faults
@pytest.mark.timeout(240 + 3 * AWAY_S)
@pytest.mark.promise("engine-stands-still")
def test_devices_that_are_online_go_on_receiving_while_the_engine_is_away(tmp_path: Path) -> None:
    """The engine is frozen and then continues. Every message has one final receipt, and no message came twice.

    `INFLIGHT_ENGINE_AWAY_S=300` keeps it frozen for so many seconds.
    """
    with contextlib.ExitStack() as all_of_it:
        running = all_of_it.enter_context(UpProcess(tmp_path / "data"))
        up = SharedUp(running.mqtt, running.kafka, running.data_dir)
        producer = all_of_it.enter_context(backend(up))
        devices = {
            f"d{number}": all_of_it.enter_context(PahoDevice(up, f"d{number}", paho.MQTTv5))  # type: ignore[arg-type]
            for number in range(DEVICES)
        }
        sent: dict[str, list[str]] = {client_id: [] for client_id in devices}

        def send_to_each() -> None:
            for number, client_id in enumerate(devices):
                sent[client_id].append(send(producer, client_id, 1 + number % 2))
            for client_id, device in devices.items():
                arrived(device, sent[client_id][-1])

        send_to_each()
        await_receipts(up, *(ids[0] for ids in sent.values()))
        pid = running.engine_pid()
        assert pid is not None
        os.killpg(pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            for number in itertools.count(1):
                send_to_each()
                ahead_s = started + number - time.monotonic()  # of one a second
                assert ahead_s > -WITHIN_S
                if number >= AWAY_S:
                    break
                time.sleep(max(0.0, ahead_s))
        finally:
            os.killpg(pid, signal.SIGCONT)
        receipts = await_final_receipts(up, *(message_id for ids in sent.values() for message_id in ids))
        assert {len(of_message) for of_message in receipts.values()} == {1}
        assert {receipt["outcome"] for (receipt,) in receipts.values()} == {"delivered"}
        for client_id, device in devices.items():
            assert all(receipts[message_id][0]["fast_path"] for message_id in sent[client_id][2:])
            assert [message.payload.decode() for message in device.messages] == sent[client_id]
