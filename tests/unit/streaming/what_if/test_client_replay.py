"""A log is replayed under the settings it was made with, and under others that a second run really had."""

import random
from collections import Counter

import pytest

from state.settings import RetryMqtt5, SessionSettings
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.what_if.comparison import Comparison
from streaming.what_if.micro_batches import MicroBatches
from streaming.what_if.partition_replay import PartitionReplay, WhatIfTask
from tests.support.simulated_log import (
    START_MS,
    Connect,
    Disconnect,
    ScriptedDevice,
    Send,
    SimulatedLog,
    SimulatedSystem,
    Step,
)

MINUTE = 60_000


def settings(**session: object) -> PipelineSettings:
    return PipelineSettings(commands_partitions=1, session=SessionSettings(**session))  # type: ignore[arg-type]


def run(present: PipelineSettings, scripts: dict[str, list[Step]], *, deaf: str = "", for_ms: int = 3 * MINUTE) -> SimulatedLog:
    devices = {client_id: ScriptedDevice(answers=lambda message_id: message_id != deaf) for client_id in scripts}
    return SimulatedSystem(present).run(scripts, devices, for_ms=for_ms)


def compared(log: SimulatedLog, present: PipelineSettings, other: PipelineSettings, **task: object) -> Comparison:
    batches = MicroBatches.of(log.batches, until_ms=START_MS + 3 * MINUTE)
    what_if = WhatIfTask(present=present, other=other, batches=batches, **{"since_ms": 0, "is_whole": True, **task})  # type: ignore[arg-type]
    return PartitionReplay(what_if).compare(log.cells())


OFFLINE_FIRST: list[Step] = [*((at, Send()) for at in range(100, 2_100, 100)), (5_000, Connect()), (30_000, Send(qos=2))]


def test_a_smaller_queue_drops_what_a_real_run_drops() -> None:
    present, other = settings(), settings(max_mqueue_len=5)
    log, real = run(present, {"c": OFFLINE_FIRST}), run(other, {"c": OFFLINE_FIRST})
    found = compared(log, present, other)
    assert found.total().before == {"delivered": 21}
    assert found.total().after == {"delivered": 6, "maxlen": 15}
    assert list(real.outcomes().values()).count("maxlen") == 15
    assert {example.message_id for example in found.examples} == {
        message_id for message_id, outcome in real.outcomes().items() if outcome == "maxlen"
    }


def test_a_larger_queue_delivers_what_was_dropped() -> None:
    present, other = settings(max_mqueue_len=5), settings()
    found = compared(run(present, {"c": OFFLINE_FIRST}), present, other)
    assert found.total().before == {"maxlen": 15, "delivered": 6}
    assert found.total().after == {"delivered": 21}
    assert found.total().changed == {"maxlen → delivered": 15}
    assert found.left_out == {}


def random_script(chance: random.Random) -> list[Step]:
    steps: list[Step] = []
    online, at_ms = False, 0
    while at_ms < 90_000:
        at_ms += chance.choice([50, 200, 900, 4_000, 20_000])
        if chance.random() < 0.75:
            for _ in range(chance.choice([1, 1, 3, 10])):
                steps.append((at_ms, Send(qos=chance.choice([0, 1, 1, 2]), ttl_ms=chance.choice([None, None, 3_000, 30_000]))))
        else:
            online = not online
            step = Connect(clean=chance.random() < 0.1, mqtt5=chance.random() < 0.3) if online else Disconnect()
            steps.append((at_ms, step))
    return steps


def random_devices(seed: int) -> dict[str, ScriptedDevice]:
    """Devices of which some are slow, and some leave a message out."""
    return {
        client_id: ScriptedDevice(
            latency_ms=(0, 300, 5_000)[(seed + number) % 3], answers=lambda message_id: sum(message_id.encode()) % 7 != seed % 7
        )
        for number, client_id in enumerate(("a", "b"))
    }


@pytest.mark.parametrize("seed", range(3))
def test_equal_settings_give_equal_outcomes_to_the_last_message(seed: int) -> None:
    chance = random.Random(seed)
    scripts = {client_id: random_script(chance) for client_id in ("a", "b")}
    present = settings(max_inflight=chance.choice([1, 4, 32]), max_mqueue_len=chance.choice([4, 1_000]), retry_interval_ms=1_000)
    log = SimulatedSystem(present).run(scripts, random_devices(seed), for_ms=3 * MINUTE)
    found = compared(log, present, present)
    total = found.total()
    assert (found.left_out, total.changed, total.before) == ({}, {}, total.after)
    assert total.resent_before == total.resent_after
    assert found.verified > 30


@pytest.mark.parametrize("changed", [{"max_mqueue_len": 3}, {"retry_interval_ms": 2_000}, {"mqueue_store_qos0": False}], ids=str)
def test_other_settings_give_the_outcomes_of_a_real_run(changed: dict[str, object]) -> None:
    chance = random.Random(7)
    scripts = {client_id: random_script(chance) for client_id in ("a", "b")}
    present, other = settings(), settings(**changed)
    log, real = (
        SimulatedSystem(one).run(scripts, {"a": ScriptedDevice(300), "b": ScriptedDevice(300)}, for_ms=3 * MINUTE)
        for one in (present, other)
    )
    end_ms = log.batches[-1].batch_ms
    found = dict(compared(log, present, other).total().after)
    found.pop("waiting", None)
    assert found == Counter(real.outcomes(until_ms=end_ms).values())


def test_a_period_begins_with_the_sessions_of_that_time() -> None:
    present, other = settings(), settings(max_mqueue_len=2)
    script: list[Step] = [*((at, Send()) for at in range(1_000, 6_000, 1_000)), (60_000, Send()), (61_000, Connect())]
    found = compared(run(present, {"c": script}), present, other, since_ms=START_MS + 30_000)
    assert found.total().before == {"delivered": 6}
    assert found.total().after == {"maxlen": 4, "delivered": 2}


def test_a_client_whose_log_begins_in_the_middle_is_left_out() -> None:
    log = run(settings(), {"c": [(1_000, Connect()), (2_000, Send()), (3_000, Send())]})
    log.records = [record for record in log.records if record.timestamp_ms > START_MS + 1_000]
    found = compared(log, settings(), settings(max_mqueue_len=1), is_whole=False)
    assert (found.left_out, found.total().clients) == ({"begun_before": 1}, 0)
    assert [example.before for example in found.unlike_ledger] == ["delivered"]


def test_a_message_that_was_never_answered_is_not_answered_elsewhere() -> None:
    present = settings(retry_interval_ms=60_000)
    script: list[Step] = [(1_000, Connect()), (2_000, Send(ttl_ms=100_000)), (3_000, Send()), (150_000, Send(qos=0))]
    log = run(present, {"c": script}, deaf="inflight.messages-0-0")
    found = compared(log, present, settings(delivery_limit=1, retry_interval_ms=5_000))
    assert found.total().changed == {"waiting → delivery_limit": 1}


def test_a_stalled_connection_is_closed_and_the_device_comes_back() -> None:
    script: list[Step] = [
        (1_000, Connect(mqtt5=True)),
        (2_000, Send()),
        (3_000, Send()),
        (60_000, Send()),
        (90_000, Disconnect()),
    ]
    log = run(settings(), {"c": script}, deaf="inflight.messages-0-0")
    other = settings(retry_mqtt5=RetryMqtt5.RECONNECT, retry_interval_ms=5_000, crash_limit=-1)
    found = compared(log, settings(), other)
    assert found.total().resent_before == 0
    assert found.total().resent_after > 0
    assert found.total().after == {"delivered": 2, "waiting": 1}


def test_clients_are_counted_by_pattern() -> None:
    log = run(settings(), {"lamp-1": [(1_000, Send())], "lamp-2": [(1_000, Send())], "x": [(1_000, Send(ttl_ms=1_000))]})
    found = compared(log, settings(), settings(), groups=("lamp-*",))
    assert {name: tally.clients for name, tally in found.groups.items()} == {"lamp-*": 2, "*": 1}
    assert found.groups["lamp-*"].before == {"waiting": 2}
