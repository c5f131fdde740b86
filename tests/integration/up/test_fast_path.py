"""The fast path through everything: paho devices, gateway, Kafka, engine, receipts."""

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
from tests.integration.up.conftest import SharedUp
from tests.integration.up.paho_device import PahoDevice
from tests.integration.up.topics_of_up import await_receipts, ledger_of
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(240)]

_ids = itertools.count(1)
ATTEMPTS = 20


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


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_to_a_device_that_is_online_goes_by_the_fast_path_and_its_receipt_says_so(up: SharedUp, qos: int) -> None:
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


@pytest.mark.faults
def test_a_device_that_is_online_goes_on_receiving_while_the_engine_is_away(tmp_path: Path) -> None:
    """It is killed and comes back; every message has one receipt, and nothing came twice at QoS 2."""
    with UpProcess(tmp_path / "data") as running:
        up = SharedUp(running.mqtt, running.kafka, running.data_dir)
        with PahoDevice(up, "d1", paho.MQTTv5) as device, backend(up) as producer:  # type: ignore[arg-type]
            sent = [send(producer, "d1", 2)]
            arrived(device, sent[0])
            await_receipts(up, *sent)
            pid = running.engine_pid()
            assert pid is not None
            os.killpg(pid, signal.SIGSTOP)
            try:
                started = time.monotonic()
                for _ in range(ATTEMPTS):
                    sent.append(send(producer, "d1", 2))
                    arrived(device, sent[-1])
                assert time.monotonic() - started < 20
            finally:
                os.killpg(pid, signal.SIGCONT)
            receipts = await_receipts(up, *sent)
            assert {receipt["outcome"] for receipt in receipts} == {"delivered"}
            assert all(receipt["fast_path"] for receipt in receipts[2:])
        assert sorted(message.payload.decode() for message in device.messages) == sorted(sent)
