"""Lists the processes by all measurements."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from inflight.status.findings import lease_expired
from inflight.status.measurements import ENGINE, LeaseHolder, Measurements, ProcessStatus, format_age
from streaming.terminal import counted

_CONNECTED: Final = {"gateway": "inflight_gateway_connections", "bridge": "inflight_bridge_devices"}
"""The metric by which a process of each kind is recognised."""


class ProcessState(StrEnum):
    """The state of a process; the value is for people.

    WAITS: a standby. NOT_READY: it answers, but reports an unmet condition.
    """

    WORKS = "works"
    WAITS = "waits"
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
    """Returns Kafka, the processes with metrics, and gateways and bridges that only their leases tell of."""
    kafka = seen.kafka
    found = [RunningProcess(name="Kafka", state=_state(kafka.error is None), summary=kafka.servers)]
    if kafka.error is None and not any(process.name == ENGINE for process in seen.processes):
        summary = "by its consumer group, which has a killed one for 15 s; no metrics" if kafka.engines else "no metrics"
        found.append(RunningProcess(name=ENGINE, state=_state(bool(kafka.engines)), summary=summary))
    for process in seen.processes:
        found.append(RunningProcess(name=process.name, state=_state_of(process), summary=_details(process)))
    for kind in "gateway", "bridge":
        with_metrics = sum(_CONNECTED[kind] in process.values or _is_away(process, kind) for process in seen.processes)
        found += _holders([holder for holder in kafka.present_holders if holder.name.startswith(kind)], kind, with_metrics)
    return found


def _holders(holders: Sequence[LeaseHolder], kind: str, with_metrics: int) -> Iterator[RunningProcess]:
    """Yields rows for gateways or bridges that only their leases tell of.

    A process with metrics has a row already. Nothing says which lease is its own, so only the number of the others is known.
    """
    living = {holder.name: holder for holder in holders if not _is_overdue(holder)}
    more = sum(not _is_overdue(holder) for holder in holders) - with_metrics
    if with_metrics and more > 0:
        summary = f"by their leases; all that have one: {', '.join(sorted(living))}"
        yield RunningProcess(name=f"{more} more {kind}{'s' * (more > 1)}", state=ProcessState.WORKS, summary=summary)
    elif not with_metrics:
        for holder in (holder for holder in holders if not _is_overdue(holder)):
            state = ProcessState.NOT_READY if holder.lacks else ProcessState.WORKS
            yield RunningProcess(name=holder.name, state=state, summary=holder.lacks or _renewed(holder))
    silent = {holder.name: holder for holder in sorted(holders, key=lambda holder: -holder.renewed_s) if _is_overdue(holder)}
    for name, holder in silent.items():
        if name not in living:  # else it was started again, and has another lease
            state = ProcessState.AWAY if lease_expired(holder) else ProcessState.NOT_READY
            yield RunningProcess(name=name, state=state, summary=_renewed(holder))


def _is_away(process: ProcessStatus, kind: str) -> bool:
    """Returns True for a gateway or bridge that serves no metrics now. Its lease is in the log until it expires."""
    return process.error is not None and process.name.partition("-")[0] == kind


def _is_overdue(holder: LeaseHolder) -> bool:
    """Returns True if several renewals are missing, of which there are six in the duration of a lease."""
    return holder.renewed_s > holder.duration_s / 2


def _renewed(holder: LeaseHolder) -> str:
    return f"lease renewed {format_age(holder.renewed_s)} ago"


def _state_of(process: ProcessStatus) -> ProcessState:
    if process.is_ready:
        return ProcessState.WAITS if process.is_standby else ProcessState.WORKS
    return ProcessState.NOT_READY if process.missing else ProcessState.AWAY


def _details(process: ProcessStatus) -> str:
    if process.missing:
        return process.missing[0].what
    if process.is_standby and process.is_ready:
        return "takes over when the engine is gone"
    return _summary(process.name, process.values) or process.address


def _state(is_well: bool) -> ProcessState:
    return ProcessState.WORKS if is_well else ProcessState.AWAY


def _summary(name: str, values: Mapping[str, float]) -> str:
    if name == ENGINE and "inflight_engine_last_micro_batch_seconds" in values:
        batches = values.get("inflight_engine_micro_batches_total", 0)
        last_s = values["inflight_engine_last_micro_batch_seconds"]
        return f"{counted(batches, 'micro-batch', 'micro-batches')}, the last one took {last_s:.2f} s"
    if _CONNECTED["gateway"] in values:
        sent, fast = (values.get(f"inflight_gateway_{what}publishes_sent_total", 0) for what in ("", "fast_"))
        share = f", {fast / sent:.0%} of them on the fast path" if sent else ""
        devices = counted(values[_CONNECTED["gateway"]], "device")
        return f"{devices}, {counted(sent, 'PUBLISH', 'PUBLISHes')} sent{share}"
    if _CONNECTED["bridge"] in values:
        return counted(values[_CONNECTED["bridge"]], "device")
    return ""
