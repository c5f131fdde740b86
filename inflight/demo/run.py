"""The demo, step by step:

1. `inflight up` in a fresh data directory: a real Kafka, the engine, a gateway;
2. devices connect and subscribe, except the late ones; a backend sends to each device, and all devices publish: each to
   another device, the steady ones to a topic of all, too;
3. in the middle the engine is killed with SIGKILL; the supervisor starts it again and it goes on from its checkpoint;
4. the late devices connect; everything drains;
5. the devices' own counts are compared with what was sent and published. Nothing lost and nothing twice at QoS 2, or the exit
   code is 1.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live

from inflight import Producer
from inflight.demo.backend import Reader
from inflight.demo.devices import Device, Manners, wait_until_subscribed
from inflight.demo.display import live_view, result_table
from inflight.demo.paho_device import wait_until_connected
from inflight.demo.scoreboard import Plan, Plans, score
from inflight.demo.up import UpProcess
from streaming.terminal import write_json

RETRY_INTERVAL: Final = "3s"
MESSAGES_PER_DEVICE: Final = 50
PUBLICATIONS_PER_DEVICE: Final = 5
FLEET_PUBLICATION: Final = 2
"""The steady devices publish this one to the fleet; it is due shortly before the kill."""
FLEET_TOPIC: Final = "fleet/news"
DEVICES_PER_KIND: Final = 3
SENDING_SECONDS: Final = 20.0
KILL_AFTER_PART: Final = 0.45
CONNECT_TIMEOUT_S: Final = 60.0
DRAIN_TIMEOUT_S: Final = 240.0
REFRESH_S: Final = 0.25


def run_demo(data_dir: Path, console: Console) -> int:
    """Runs all steps; prints the result with its last line as JSON on standard output. Returns the exit code."""
    started = time.monotonic()
    plans, devices = make_cast()
    listeners = [device for device in devices if device.manners is not Manners.LATE]
    console.print(
        f"Inflight demo: {len(devices)} devices, {plans.total():,} messages, one engine killed on the way. "
        f"retry_interval is {RETRY_INTERVAL} here (30 s by default), so that you need not wait."
    )
    options = ("--set", f"retry_interval={RETRY_INTERVAL}")
    with UpProcess(data_dir, *options, quiet=False) as up, contextlib.ExitStack() as stack:
        console.print(f"Ready: devices at {up.mqtt[0]}:{up.mqtt[1]}, Kafka at {up.kafka}, data in {data_dir}")
        reader = Reader(up.kafka, uplink_topic="inflight.uplink", ledger_topic="inflight.ledger")
        stack.callback(reader.close)
        producer = stack.enter_context(Producer(up.kafka))
        for device in devices:
            stack.callback(device.stop)
        for device in listeners:
            device.start(*up.mqtt)
        wait_until_connected(listeners, CONNECT_TIMEOUT_S)
        wait_until_subscribed(listeners, CONNECT_TIMEOUT_S)
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            kills = 0
            for sent_part in _send_all(plans.backend, devices, producer):
                if kills == 0 and sent_part >= KILL_AFTER_PART:
                    kills += _kill_engine(up)
                live.update(live_view(devices, plans, reader, up.data_dir, phase=_phase(sent_part, kills)))
            for device in devices:
                if device.manners is Manners.LATE:
                    device.start(*up.mqtt)
            deadline = time.monotonic() + DRAIN_TIMEOUT_S
            while not _complete(devices, plans, reader) and time.monotonic() < deadline:
                live.update(live_view(devices, plans, reader, up.data_dir, phase="late devices connect, everything drains"))
                time.sleep(REFRESH_S)
    return _verdict(devices, plans, reader, kills=kills, seconds=time.monotonic() - started, console=console)


def make_cast() -> tuple[Plans, list[Device]]:
    """Half of each kind of device speaks MQTT 3.1.1, half MQTT 5. QoS 0 goes only to devices that keep their line.

    What devices publish, at QoS 2, is for devices that subscribe before: all but the late ones.
    """
    plans, devices = Plans(Plan(), Plan(), Plan()), []
    for manners in Manners:
        for number in range(2 * DEVICES_PER_KIND):
            mqtt5 = number % 2 == 1
            name = f"{manners.name.lower().replace('_', '-')}-{number + 1}"
            subscribe = () if manners is Manners.LATE else (f"peer/{name}", "fleet/#")
            devices.append(Device(name, manners, mqtt5=mqtt5, subscribe=subscribe))
            keeps_its_line = manners in (Manners.STEADY, Manners.LATE)
            for index in range(MESSAGES_PER_DEVICE):
                qos = index % 3 if keeps_its_line else 1 + index % 2
                plans.backend.add(name, qos, f"{name} #{index} qos{qos}".encode())
    listeners = [device.name for device in devices if device.topic_filters]
    for place, device in enumerate(devices):
        for number in range(PUBLICATIONS_PER_DEVICE):
            payload = f"{device.name} publication #{number}".encode()
            if device.manners is Manners.STEADY and number == FLEET_PUBLICATION:
                device.to_publish.append((FLEET_TOPIC, payload))
                for listener in listeners:
                    plans.fleet.add(listener, 2, payload)
            else:
                peer = listeners[(place + 1) % len(listeners)]
                device.to_publish.append((f"peer/{peer}", payload))
                plans.peers.add(peer, 2, payload)
    return plans, devices


def _send_all(plan: Plan, devices: list[Device], producer: Producer) -> Iterator[float]:
    """Sends at an even pace, as a backend does; yields the part that has been sent, several times a second.

    Returns when Kafka has confirmed everything. Raises SendFailed.
    """
    queues = {device.name: plan.payloads(device.name) for device in devices}
    started, futures = time.monotonic(), []
    sent = published = 0
    while sent < MESSAGES_PER_DEVICE:
        part = min(1.0, (time.monotonic() - started) / SENDING_SECONDS)
        while sent < part * MESSAGES_PER_DEVICE:
            for device in devices:
                payload = queues[device.name][sent]
                futures.append(producer.send_async(device.name, f"cmd/{sent % 5}", payload, qos=int(payload[-1:])))
            sent += 1
        while published < part * PUBLICATIONS_PER_DEVICE:
            for device in devices:
                device.publish(*device.to_publish[published])
            published += 1
        yield sent / MESSAGES_PER_DEVICE
        time.sleep(REFRESH_S)
    for future in futures:
        future.result()


def _kill_engine(up: UpProcess) -> int:
    pid = up.engine_pid()
    if pid is None:
        return 0
    os.kill(pid, signal.SIGKILL)
    return 1


def _phase(sent_part: float, kills: int) -> str:
    return f"sending, {sent_part:.0%}" + (", the engine was killed with SIGKILL and is back or on its way" if kills else "")


def _complete(devices: list[Device], plans: Plans, reader: Reader) -> bool:
    published = [payload for device in devices for payload in device.published]
    return score(devices, *plans).lost == 0 and reader.uplink.lost(published) == 0


def _verdict(devices: list[Device], plans: Plans, reader: Reader, *, kills: int, seconds: float, console: Console) -> int:
    total = score(devices, *plans)
    routed = score(devices, plans.peers, plans.fleet)
    published = [payload for device in devices for payload in device.published]
    uplink_lost = reader.uplink.lost(published)
    uplink_duplicates = reader.uplink.duplicates()
    console.print(result_table(devices, plans))
    console.print(
        f"Uplink: {len(published)} QoS 2 publications by devices, {uplink_lost} lost, {uplink_duplicates} handed on twice. "
        f"Every number above was counted by the devices, none by the engine."
    )
    result = {
        "sent": total.sent,
        "delivered": total.delivered,
        "lost": total.lost,
        "qos2_duplicates": total.qos2_duplicates,
        "redelivered": total.redelivered,
        "routed": routed.sent,
        "routed_lost": routed.lost,
        "uplink_lost": uplink_lost,
        "uplink_duplicates": uplink_duplicates,
        "engine_kills": kills,
        "seconds": round(seconds, 1),
    }
    write_json([result])
    return 0 if not (total.lost or total.qos2_duplicates or uplink_lost or uplink_duplicates) and kills else 1
