"""A backend and real devices: deliveries, requests, uplink and receipts, and the examples of docs/guides/backend.md."""

import asyncio
import queue
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest

from inflight import AsyncProducer, DeliveryFuture, Outcome, Producer, Receipts, RequestFailed, Uplink
from tests.integration.up.conftest import SharedUp
from tests.support.waiting import DEADLINE_S

EXAMPLES = Path(__file__).parents[3] / "examples"


@contextmanager
def device(up: SharedUp, client_id: str, topic_filter: str) -> Iterator[paho.Client]:
    """A device that has subscribed, and acknowledges what it gets."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id)
    subscribed: queue.Queue[bool] = queue.Queue()
    client.on_connect = lambda *_: client.subscribe(topic_filter, qos=2)
    client.on_subscribe = lambda *_: subscribed.put(True)
    client.connect(*up.mqtt)
    client.loop_start()
    try:
        subscribed.get(timeout=DEADLINE_S)
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


@contextmanager
def answering(up: SharedUp, level: int) -> Iterator[None]:
    """The example of an answering device, which must not end by itself."""
    command = [sys.executable, EXAMPLES / "answering_device.py", up.mqtt[0], str(up.mqtt[1]), str(level)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
            assert process.poll() is None, "it has ended by itself"
        finally:
            process.terminate()


def publish(client: paho.Client, topic: str, *payloads: bytes) -> None:
    for payload in payloads:
        client.publish(topic, payload, qos=1).wait_for_publish(DEADLINE_S)


@pytest.mark.promise("deliveries")
def test_a_delivery_has_the_outcome_and_is_found_again_by_id(up: SharedUp) -> None:
    with Producer(up.kafka) as producer, device(up, "awaited", "cmd"):
        delivery = producer.deliver("awaited", "cmd", b"now", qos=2)
        dead = producer.deliver("never-here", "cmd", b"late", expiration_ms=0)
        called: queue.Queue[DeliveryFuture] = queue.Queue()
        delivery.add_done_callback(called.put)
        receipt = delivery.result(DEADLINE_S)
        assert (receipt.outcome, receipt.message_id) == (Outcome.DELIVERED, delivery.message_id)
        assert receipt.attempts >= 1
        assert called.get(timeout=DEADLINE_S) is delivery
        assert dead.result(DEADLINE_S).outcome == Outcome.EXPIRED
    with Producer(up.kafka) as later:
        found = [later.delivery("awaited", delivery.message_id), later.delivery("never-here", dead.message_id)]
        assert [each.result(DEADLINE_S).outcome for each in found] == [Outcome.DELIVERED, Outcome.EXPIRED]


def test_an_async_producer_awaits_outcomes_and_responses(up: SharedUp) -> None:
    async def main() -> None:
        async with AsyncProducer(up.kafka) as producer:
            sent = await producer.send("async", "cmd", b"0")
            deliveries = await asyncio.gather(*(producer.deliver("async", "cmd", b"%d" % number) for number in range(50)))
            with pytest.raises(RequestFailed, match=r"has not answered within 5 s"):  # within which Kafka has the request
                await producer.request("async", "cmd", b"silent", timeout_s=5, expiration_ms=60_000)
            assert {(await delivery).outcome for delivery in deliveries} == {Outcome.DELIVERED}
            assert (await (await producer.delivery("async", sent.message_id))).outcome == Outcome.DELIVERED

    with device(up, "async", "cmd"):
        asyncio.run(main())


@pytest.mark.promise("deliveries")
def test_a_group_goes_on_after_what_its_loop_has_handled(up: SharedUp) -> None:
    with device(up, "grouped", "none") as client:
        publish(client, "grouped/a", b"1", b"2")
        publish(client, "elsewhere/a", b"never")
        publish(client, "grouped/b", b"3", b"4")
    options: dict[str, Any] = {"group": "test-backend-grouped", "topics": "grouped/+"}
    seen = []
    with Uplink(up.kafka, **options) as uplink:
        for message in uplink:
            seen.append(message.payload)
            if message.payload == b"2":
                break  # as a body that raises: this one is not handled
    assert seen == [b"1", b"2"]

    async def rest() -> list[bytes]:
        found = []
        async with Uplink(up.kafka, **options) as uplink:
            async for message in uplink:
                found.append(message.payload)
                if len(found) == 3:
                    uplink.stop()
        return found

    assert asyncio.run(rest()) == [b"2", b"3", b"4"]
    with Uplink(up.kafka, group="test-backend-grouped", topics="grouped/#") as uplink, device(up, "grouped", "none") as client:
        publish(client, "grouped/end", b"5")
        assert next(uplink).payload == b"5"


def test_receipts_of_some_outcomes_are_read_in_a_group(up: SharedUp) -> None:
    with Producer(up.kafka) as producer:
        sent = [producer.send("receipted", "cmd", b"x", expiration_ms=0).message_id for _ in range(3)]
    with Receipts(up.kafka, group="test-backend-receipts", outcomes=Outcome.EXPIRED) as receipts:
        own = (receipt.message_id for receipt in receipts if receipt.client_id == "receipted")
        assert [next(own) for _ in sent] == sent


def run_example(name: str, up: SharedUp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, up.kafka])
    handler = signal.getsignal(signal.SIGTERM)
    try:
        runpy.run_path(str(EXAMPLES / name))
    finally:
        signal.signal(signal.SIGTERM, handler)


@pytest.mark.servers
def test_the_examples_of_a_backend_run(up: SharedUp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as devices:
        lamp = devices.enter_context(device(up, "lamp-1", "commands/#"))
        for level in (5, 4):
            devices.enter_context(answering(up, level))
        run_example("deliver.py", up, monkeypatch)
        first, second = capsys.readouterr().out.splitlines()
        assert first.startswith("it was delivered after ")
        assert second == "it was delivered"
        run_example("deliver_async.py", up, monkeypatch)
        assert capsys.readouterr().out == "{'delivered': 100}\n"
        run_example("request.py", up, monkeypatch)
        said = capsys.readouterr().out.splitlines()
        assert said[:2] == ["MQTT 5 says 21.5", "MQTT 3.1.1 says 21.5"]
        assert said[2].startswith("no answer: ")
        with Producer(up.kafka) as producer:
            for level in (5, 4):
                asked = f"answering-{level}", "thermostat/get", b"target"
                producer.send(f"answering-{level}", "thermostat/news", b"asks for nothing")
                answers = [producer.request(*asked, id_in_topic=level == 4, timeout_s=DEADLINE_S) for _ in range(3)]
                assert [answer.payload for answer in answers] == [b"21.5"] * 3
        publish(lamp, "meter/7/reading", b"41.2", b"last")
    run_example("uplink.py", up, monkeypatch)
    assert capsys.readouterr().out.splitlines() == ["lamp-1 meter/7/reading 41.2", "lamp-1 meter/7/reading last"]
    with Producer(up.kafka) as producer:
        sent = producer.send("lamp-away", "commands/switch", b"on", expiration_ms=0)
    run_example("receipts.py", up, monkeypatch)
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{sent.message_id} for lamp-away expired")
