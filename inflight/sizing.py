"""Computes what a fleet needs: cores, partitions, gateways, memory, disk. It is arithmetic on measured constants.

docs/operate/sizing.md has the formula in words, and the command that measured each constant. Processor times are those of the
slower machine in docs/project/results, so a newer one needs fewer cores.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_DAY_S: Final = 86_400
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_CONTESTANTS: Final = "bench.contestants"
_SIZING: Final = "bench.sizing"

MEASURED_PAYLOAD_BYTES: Final = 200
"""The payload in the measurements of bytes."""
RATES: Final = (200, 1_000)
"""Messages a second at which the processor time of a message was measured."""
BUSY: Final = 0.5
"""The share of a core that the mean load may take. The rest is for bursts, starts and devices that reconnect."""
BROKERS: Final = 3
"""Replicas where the brokers' default.replication.factor decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A constant of the formula.

    Attributes:
        meaning, unit: Texts for people.
        program: What measured the value: `python -m PROGRAM`; docs/operate/sizing.md has its options.
    """

    meaning: str
    value: float
    unit: str
    program: str = _CONTESTANTS


PARTS: Final = ("kafka", "engine", "gateway")
IDLE: Final = {
    "kafka": Measured(meaning="Kafka with nothing to do, for each gateway process", value=0.045, unit="cores"),
    "engine": Measured(meaning="the engine with nothing to do", value=0.046, unit="cores"),
    "gateway": Measured(meaning="a gateway process with nothing to do", value=0.016, unit="cores"),
}
MESSAGE: Final = {
    ("kafka", 200): Measured(meaning="Kafka: a message at 200 a second", value=2.21, unit="ms"),
    ("kafka", 1_000): Measured(meaning="Kafka: a message at 1,000 a second", value=0.89, unit="ms"),
    ("engine", 200): Measured(meaning="engine: a message at 200 a second", value=2.94, unit="ms"),
    ("engine", 1_000): Measured(meaning="engine: a message at 1,000 a second", value=0.68, unit="ms"),
    ("gateway", 200): Measured(meaning="gateways: a message at 200 a second", value=1.28, unit="ms"),
    ("gateway", 1_000): Measured(meaning="gateways: a message at 1,000 a second", value=0.62, unit="ms"),
}
PUBLICATION: Final = {
    "kafka": Measured(meaning="Kafka: a publication of a device", value=2.25, unit="ms", program=_SIZING),
    "gateway": Measured(meaning="gateways: a publication of a device", value=1.13, unit="ms", program=_SIZING),
}
PING: Final = Measured(meaning="gateways: a PINGREQ", value=0.29, unit="ms", program=_SIZING)
BURST: Final = Measured(meaning="all together: a message of a burst", value=0.41, unit="ms")
CONNECT: Final = Measured(meaning="all together: a CONNECT to a kept session", value=3.16, unit="ms")

MESSAGE_BYTES: Final = {
    "messages": Measured(meaning="`messages`: a message", value=305, unit="bytes", program=_SIZING),
    "events": Measured(meaning="`events`: a message, with its acknowledgement", value=454, unit="bytes", program=_SIZING),
    "receipts": Measured(meaning="`receipts`: a message", value=362, unit="bytes", program=_SIZING),
    "ledger": Measured(meaning="`ledger`: a message", value=522, unit="bytes", program=_SIZING),
}
UPLINK_BYTES: Final = Measured(meaning="`uplink`: a publication of a device", value=390, unit="bytes", program=_SIZING)
WITH_PAYLOAD: Final = ("messages", "events", "uplink")
"""Topics whose records have the payload, once."""

ENGINE_MEMORY: Final = Measured(
    meaning="the engine while it reads a backlog", value=4.7e9, unit="bytes", program="test_large_backlog.py"
)
SESSION_MEMORY: Final = Measured(meaning="the engine, a session", value=335, unit="bytes", program="bench.sessions")
KAFKA_MEMORY: Final = Measured(meaning="a broker of `inflight up`", value=358e6, unit="bytes", program=_SIZING)
GATEWAY_MEMORY: Final = Measured(meaning="a gateway process", value=85 * _MIB, unit="bytes", program="bench.subscription_gateway")
CONNECTION_MEMORY: Final = Measured(meaning="a gateway, a connection", value=6.4 * _KIB, unit="bytes", program="bench.end_to_end")
SUBSCRIPTION_MEMORY: Final = Measured(
    meaning="each gateway process, a subscription of any device", value=166, unit="bytes", program="bench.subscription_gateway"
)
STATE: Final = Measured(meaning="checkpoint: a session with 100 message ids", value=4_387, unit="bytes", program=_SIZING)
QUEUED: Final = Measured(
    meaning="checkpoint: a message that waits, beside its payload", value=62, unit="bytes", program="bench.backlog"
)

CONSTANTS: Final[tuple[Measured, ...]] = (
    *IDLE.values(),
    *MESSAGE.values(),
    *PUBLICATION.values(),
    PING,
    BURST,
    CONNECT,
    *MESSAGE_BYTES.values(),
    UPLINK_BYTES,
    ENGINE_MEMORY,
    SESSION_MEMORY,
    KAFKA_MEMORY,
    GATEWAY_MEMORY,
    CONNECTION_MEMORY,
    SUBSCRIPTION_MEMORY,
    STATE,
    QUEUED,
)
"""All of them, in the order of docs/operate/sizing.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A fleet that is to be served, in the mean of a busy hour.

    Attributes:
        messages_per_s, publications_per_s: Of one device.
    """

    devices: int
    messages_per_s: float
    publications_per_s: float
    payload_bytes: int
    keep_alive_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The part of the configuration that decides a size.

    Attributes:
        retention_s: By topic, without the prefix; infinite = never deleted.
        max_connections, max_connect_rate: Of one gateway process.
        max_queue_len, max_queue_bytes: Of a client that is away; 0 = no limit.
    """

    replicas: int
    receipts: bool
    ledger: bool
    retention_s: Mapping[str, float]
    max_connections: int
    max_connect_rate: int
    max_queue_len: int
    max_queue_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """A line of the answer. what, value, reason: texts for people."""

    what: str
    value: str
    reason: str


def size(fleet: Fleet, deployment: Deployment) -> list[SizeRow]:
    """Returns what the fleet needs, with the steps of the formula."""
    return list(_rows(fleet, deployment))


def message_cores(part: str, per_s: float) -> float:
    """Returns the cores that messages take: a line through the measured rates, and no further savings above the highest.

    Args:
        part: One of `PARTS`.
    """
    low, high = RATES
    at_low, at_high = (MESSAGE[part, rate].value * rate / 1_000 for rate in RATES)
    if per_s <= low:
        return at_low * per_s / low
    if per_s <= high:
        return at_low + (at_high - at_low) * (per_s - low) / (high - low)
    return MESSAGE[part, high].value * per_s / 1_000


def gateway_processes(fleet: Fleet, deployment: Deployment) -> int:
    """Returns how many carry all devices and the load, and one more, so that one may fail."""
    by_devices = math.ceil(fleet.devices / deployment.max_connections)
    by_load = math.ceil(_gateway_load(fleet) / (BUSY - IDLE["gateway"].value))
    return max(1, by_devices, by_load) + 1


def cores(fleet: Fleet, processes: int) -> dict[str, float]:
    """Returns the cores that are in use in the mean, by part.

    Args:
        processes: Of gateways.
    """
    messages, publications = fleet.devices * fleet.messages_per_s, fleet.devices * fleet.publications_per_s
    kafka = message_cores("kafka", messages) + PUBLICATION["kafka"].value * publications / 1_000
    return {
        "kafka": IDLE["kafka"].value * processes + kafka,
        "engine": IDLE["engine"].value + message_cores("engine", messages),
        "gateway": IDLE["gateway"].value * processes + _gateway_load(fleet),
    }


def bytes_a_day(fleet: Fleet, deployment: Deployment) -> dict[str, float]:
    """Returns what each topic grows by in a day, on all replicas."""
    per_day = _DAY_S * fleet.devices * deployment.replicas
    more = fleet.payload_bytes - MEASURED_PAYLOAD_BYTES
    grown = {
        topic: per_day * fleet.messages_per_s * (of_one.value + (more if topic in WITH_PAYLOAD else 0))
        for topic, of_one in MESSAGE_BYTES.items()
    }
    grown["uplink"] = per_day * fleet.publications_per_s * (UPLINK_BYTES.value + more)
    if not deployment.receipts:
        del grown["receipts"]
    if not deployment.ledger:
        del grown["ledger"]
    return {topic: size_bytes for topic, size_bytes in grown.items() if size_bytes > 0}


def waiting_after_a_day(fleet: Fleet, deployment: Deployment) -> int:
    """Returns the messages that wait for one device that was away for a day."""
    waiting = math.ceil(_DAY_S * fleet.messages_per_s)
    if deployment.max_queue_len:
        waiting = min(waiting, deployment.max_queue_len)
        if deployment.max_queue_bytes:
            waiting = min(waiting, deployment.max_queue_bytes // max(1, fleet.payload_bytes))
    return waiting


def _gateway_load(fleet: Fleet) -> float:
    """Returns the cores that all gateways take for what the devices do."""
    messages, publications = fleet.devices * fleet.messages_per_s, fleet.devices * fleet.publications_per_s
    small = PUBLICATION["gateway"].value * publications + PING.value * fleet.devices / fleet.keep_alive_s
    return message_cores("gateway", messages) + small / 1_000


def _rows(fleet: Fleet, deployment: Deployment) -> Iterator[SizeRow]:
    messages, publications = fleet.devices * fleet.messages_per_s, fleet.devices * fleet.publications_per_s
    yield _row("messages a second", f"{messages:,.1f}", f"{fleet.devices:,} devices")
    yield _row("publications a second", f"{publications:,.1f}", "of all devices")
    yield _row("PINGREQ a second", f"{fleet.devices / fleet.keep_alive_s:,.1f}", f"keep alive {fleet.keep_alive_s:g} s")
    processes = gateway_processes(fleet, deployment)
    used = cores(fleet, processes)
    whole = {part: math.ceil(of_part / BUSY) for part, of_part in used.items()}
    for part, title in ("kafka", "brokers, all together"), ("engine", "engine"), ("gateway", "gateways, all together"):
        yield _row(f"cores: {title}", f"{whole[part]}", f"{used[part]:.2f} in the mean, at most {BUSY:.0%} of each core busy")
    reason = f"at most {deployment.max_connections:,} devices each (limits.max_connections), and one that may fail"
    yield _row("gateway processes", f"{processes}", reason)
    state_partitions = max(2, whole["engine"])
    yield _row("engine.state_partitions", f"{state_partitions}", "one for each core of the engine, at least 2")
    yield _row(
        "partitions of most topics",
        f"{max(4, state_partitions, processes)}",
        "one for each gateway and state partition, at least 4",
    )
    yield _row("topics.partitions.commands", f"{max(8, 2 * processes)}", "two for each gateway, at least 8")
    yield from _memory(fleet, processes)
    yield from _disk(fleet, deployment)
    yield from _peaks(fleet, deployment, processes, sum(whole.values()))


def _memory(fleet: Fleet, processes: int) -> Iterator[SizeRow]:
    engine = ENGINE_MEMORY.value + SESSION_MEMORY.value * fleet.devices
    yield _row("memory: engine", _bytes(engine), "while it reads a backlog; a standby has as much")
    yield _row("memory: a broker", _bytes(KAFKA_MEMORY.value), "at least; a larger heap and the page cache spare the disk")
    devices = math.ceil(fleet.devices / (processes - 1))
    gateway = GATEWAY_MEMORY.value + CONNECTION_MEMORY.value * devices + SUBSCRIPTION_MEMORY.value * fleet.devices
    yield _row("memory: a gateway process", _bytes(gateway), f"{devices:,} devices, and a subscription of each of all devices")


def _disk(fleet: Fleet, deployment: Deployment) -> Iterator[SizeRow]:
    grown = bytes_a_day(fleet, deployment)
    for topic, size_bytes in grown.items():
        yield _row(f"disk a day: {topic}", _bytes(size_bytes), _replicas(deployment))
    yield _row("disk a day: all topics", _bytes(sum(grown.values())), _replicas(deployment))
    kept = sum(size_bytes * deployment.retention_s[topic] / _DAY_S for topic, size_bytes in grown.items())
    yield _row("disk: all topics", _bytes(kept), "with topics.retention")
    yield _row("checkpoint", _bytes(STATE.value * fleet.devices), "each session knows its last 100 message ids")
    waiting = waiting_after_a_day(fleet, deployment)
    queued = waiting * fleet.devices * (fleet.payload_bytes + QUEUED.value)
    yield _row(
        "checkpoint: all devices away for a day", _bytes(queued), f"{waiting:,} messages for each, at most session.max_mqueue_len"
    )


def _peaks(fleet: Fleet, deployment: Deployment, processes: int, all_cores: int) -> Iterator[SizeRow]:
    burst_s = BURST.value * fleet.devices / 1_000 / all_cores
    yield _row("a message to each device at once", _seconds(burst_s), f"all {all_cores} cores busy")
    by_cores = CONNECT.value * fleet.devices / 1_000 / all_cores
    by_limit = fleet.devices / (deployment.max_connect_rate * (processes - 1))
    yield _row("all devices connect at once", _seconds(max(by_cores, by_limit)), f"all {all_cores} cores busy")


def _row(what: str, value: str, reason: str) -> SizeRow:
    return SizeRow(what=what, value=value, reason=reason)


def _replicas(deployment: Deployment) -> str:
    return f"{deployment.replicas} replicas" if deployment.replicas > 1 else "1 replica"


def _bytes(value: float) -> str:
    if math.isinf(value):
        return "grows for ever"
    for unit, factor in ("TiB", 1 << 40), ("GiB", _GIB), ("MiB", _MIB):
        if value >= factor:
            return f"{value / factor:,.1f} {unit}"
    return f"{value / _KIB:,.1f} KiB"


def _seconds(value: float) -> str:
    return f"{value / 60:,.0f} min" if value >= 120 else f"{value:,.0f} s" if value >= 10 else f"{value:.1f} s"
