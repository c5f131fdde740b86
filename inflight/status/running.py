"""Lists the processes by all measurements."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from inflight.status.findings import lease_expired
from inflight.status.formatting import format_age
from inflight.status.measurements import ENGINE, Measurements


class ProcessState(StrEnum):
    """The state of a process; the value is for people. NOT_READY: it answers, but reports an unmet condition."""

    WORKS = "works"
    NOT_READY = "not ready"
    AWAY = "away"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProcess:
    """A process and its state.

    Attributes:
        summary: What it does, or its address, for people.
    """

    name: str
    state: ProcessState
    summary: str


def running(seen: Measurements) -> list[RunningProcess]:
    """Returns Kafka, the processes with metrics, and all gateways and bridges with leases."""
    kafka = seen.kafka
    found = [RunningProcess(name="Kafka", state=_state(kafka.error is None), summary=kafka.servers)]
    if kafka.error is None and seen.process(ENGINE) is None:
        found.append(RunningProcess(name=ENGINE, state=_state(bool(kafka.engines)), summary="by its consumer group; no metrics"))
    for process in seen.processes:
        state = ProcessState.NOT_READY if process.missing else _state(process.error is None)
        found.append(
            RunningProcess(name=process.name, state=state, summary=_summary(process.name, process.values) or process.address)
        )
    for holder in kafka.holders:
        lease = f"lease renewed {format_age(holder.renewed_s)} ago"
        found.append(RunningProcess(name=holder.name, state=_state(not lease_expired(holder)), summary=lease))
    return found


def _state(is_well: bool) -> ProcessState:
    return ProcessState.WORKS if is_well else ProcessState.AWAY


def _summary(name: str, values: Mapping[str, float]) -> str:
    if name == ENGINE and "inflight_engine_last_micro_batch_seconds" in values:
        batches = values.get("inflight_engine_micro_batches_total", 0)
        return f"{batches:,.0f} micro-batches, the last one took {values['inflight_engine_last_micro_batch_seconds']:.2f} s"
    if "inflight_gateway_connections" in values:
        sent, fast = (values.get(f"inflight_gateway_{what}publishes_sent_total", 0) for what in ("", "fast_"))
        share = f", {fast / sent:.0%} of them on the fast path" if sent else ""
        return f"{values['inflight_gateway_connections']:,.0f} devices, {sent:,.0f} PUBLISHes sent{share}"
    if "inflight_bridge_devices" in values:
        return f"{values['inflight_bridge_devices']:,.0f} devices"
    return ""
