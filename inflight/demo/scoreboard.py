"""Counts what was sent and what the devices received, and gives the verdict. Nothing here asks the engine."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from inflight.demo.devices import Device, Manners


@dataclass(slots=True)
class Plan:
    """Lists what is for each device: payloads by device and QoS. Every payload is unique, so that a device can count it."""

    by_device: dict[str, dict[int, list[bytes]]] = field(default_factory=dict)

    def add(self, device: str, qos: int, payload: bytes) -> None:
        self.by_device.setdefault(device, {}).setdefault(qos, []).append(payload)

    def payloads(self, device: str, *, qos: Iterable[int] = (0, 1, 2)) -> list[bytes]:
        of_device = self.by_device.get(device, {})
        return [payload for level in qos for payload in of_device.get(level, [])]

    def total(self) -> int:
        return sum(len(self.payloads(device)) for device in self.by_device)


class Plans(NamedTuple):
    """Messages of the backend, publications of devices for another device, and those for all of them."""

    backend: Plan
    peers: Plan
    fleet: Plan

    def total(self) -> int:
        return sum(plan.total() for plan in self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One row of the result: a group of devices, or all of them.

    Attributes:
        sent: Includes what devices have published for them.
        redelivered: Copies at QoS 1 beyond the first, which MQTT allows.
        qos2_duplicates: Copies at QoS 2, which MQTT does not allow.
    """

    devices: int
    sent: int
    delivered: int
    redelivered: int
    qos2_duplicates: int

    @property
    def lost(self) -> int:
        return self.sent - self.delivered


def score(devices: Iterable[Device], *plans: Plan) -> Score:
    """Counts for these devices what is in any of these plans. Safe to call while they receive."""
    counted = list(devices)
    sent = delivered = redelivered = duplicates = 0
    for device in counted:
        received = Counter(device.received.copy())
        for qos in (0, 1, 2):
            wanted = [payload for plan in plans for payload in plan.payloads(device.name, qos=(qos,))]
            arrived = [received[payload] for payload in wanted]
            sent += len(wanted)
            delivered += sum(1 for copies in arrived if copies)
            extra = sum(copies - 1 for copies in arrived if copies > 1)
            if qos == 2:
                duplicates += extra
            else:
                redelivered += extra
    return Score(devices=len(counted), sent=sent, delivered=delivered, redelivered=redelivered, qos2_duplicates=duplicates)


def by_manners(devices: Iterable[Device], plan: Plan) -> Mapping[Manners, Score]:
    listed = list(devices)
    return {manners: score([d for d in listed if d.manners is manners], plan) for manners in Manners}


@dataclass(slots=True)
class UplinkAccount:
    """Publications that arrived in `inflight.uplink`, by payload and by `inflight-id`.

    The same `inflight-id` twice is one publication written twice (a re-executed micro-batch), as the guarantees say; the same
    payload under two ids would be a publication handed on twice.
    """

    ids_by_payload: dict[bytes, set[str]] = field(default_factory=dict)

    def add(self, payload: bytes, inflight_id: str) -> None:
        self.ids_by_payload.setdefault(payload, set()).add(inflight_id)

    def lost(self, published: Iterable[bytes]) -> int:
        return sum(1 for payload in published if payload not in self.ids_by_payload)

    def duplicates(self) -> int:
        return sum(len(ids) - 1 for ids in self.ids_by_payload.values())
