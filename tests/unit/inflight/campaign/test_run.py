"""A campaign with a topic in memory, a clock that is a number, and a sender that may be killed."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from inflight.campaign.outcomes import CampaignOutcomes
from inflight.campaign.plan import AbortRule, Addressees, CampaignMessage, CampaignPlan
from inflight.campaign.records import (
    Campaign,
    CampaignStatus,
    CampaignTable,
    Progress,
    campaign_record,
    list_records,
    message_id_of,
)
from inflight.campaign.run import CampaignRefused, CampaignRun, new_campaign, with_status
from state.model import Outcome
from state.records.receipts import Receipt

CLIENTS = [f"c{number}" for number in range(10)]
PLAN = CampaignPlan(
    id="update", clients=Addressees(list=tuple(CLIENTS)), message=CampaignMessage(topic="cmd", payload="p"), rate=2, batch=2
)


class Killed(BaseException):
    pass


class World:
    """The topic, what Kafka has, and the receipts. kill_in: the send in which the process dies after the first message."""

    def __init__(self, plan: CampaignPlan = PLAN) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []
        self.sent: list[str] = []
        self.now_ms = 0
        self.kill_in = -1
        self.sends = 0
        self.unreachable: dict[str, str] = {}
        self.outcomes = CampaignOutcomes("update")
        self.on_send: Callable[[], None] = lambda: None
        self.write([*list_records(plan.id, CLIENTS), campaign_record(new_campaign(plan, len(CLIENTS), now_ms=0))])

    def write(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        self.records += records

    def send(self, campaign: Campaign, client_ids: Sequence[str]) -> dict[str, str]:
        self.on_send()
        self.sends += 1
        reached = [client_id for client_id in client_ids if client_id not in self.unreachable]
        if self.sends == self.kill_in:
            self.sent += reached[:1]
            raise Killed
        self.sent += reached
        return {client_id: self.unreachable[client_id] for client_id in client_ids if client_id in self.unreachable}

    def already_sent(self, campaign: Campaign, client_ids: Sequence[str], since_ms: int) -> set[str]:
        return {campaign.message_id(client_id) for client_id in self.sent if client_id in client_ids}

    def receive(self, *outcomes: Outcome) -> None:
        for client_id, outcome in zip(CLIENTS, outcomes, strict=False):
            self.outcomes.add(receipt(client_id, outcome))

    def sleep(self, duration_s: float) -> None:
        self.now_ms += round(duration_s * 1_000)

    def run(self) -> Campaign:
        reader = Reader(self)
        return CampaignRun(
            "update", reader, self, lambda campaign: self.outcomes, now_ms=lambda: self.now_ms, sleep=self.sleep
        ).run()

    def order(self, status: CampaignStatus) -> None:
        self.write([campaign_record(with_status(self.table().campaigns["update"], status, "wanted"))])

    def table(self) -> CampaignTable:
        table = CampaignTable()
        table.read(self.records)
        return table


class Reader:
    """The topic as one process reads it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._next = 0
        self.write = world.write

    def read(self) -> list[tuple[bytes, bytes | None]]:
        found, self._next = self._world.records[self._next :], len(self._world.records)
        return found


def receipt(client_id: str, outcome: Outcome, outcome_ms: int = 1) -> Receipt:
    return Receipt(
        message_id=message_id_of("update", client_id),
        client_id=client_id,
        outcome=outcome,
        reason_code=0,
        attempts=1,
        accepted_ms=0,
        first_sent_ms=None,
        outcome_ms=outcome_ms,
        recorded_ms=outcome_ms,
        detail="",
        final=True,
        destinations=(),
        deaths=0,
        correlation_data=None,
        fast_path=False,
        traceparent=None,
    )


def test_each_client_gets_the_message_once_at_the_rate() -> None:
    world = World()
    assert world.run().status is CampaignStatus.COMPLETE
    assert world.sent == CLIENTS
    assert 4_000 <= world.now_ms <= 5_000
    assert world.table().progress("update").sent == 10


@pytest.mark.parametrize("kill_in", range(1, 6))
@pytest.mark.promise("campaigns")
def test_a_killed_campaign_goes_on_without_sending_twice(kill_in: int) -> None:
    world = World()
    world.kill_in = kill_in
    with pytest.raises(Killed):
        world.run()
    assert world.run().status is CampaignStatus.COMPLETE
    assert sorted(world.sent) == CLIENTS


def test_pause_stops_it_and_another_run_goes_on() -> None:
    world = World()
    world.on_send = lambda: world.order(CampaignStatus.PAUSED) if world.sends == 1 else None
    assert world.run().status is CampaignStatus.PAUSED
    assert world.sent == CLIENTS[:4]
    progress = world.table().progress("update")
    assert (progress.sent, progress.until) == (4, 4), "nothing is in doubt"
    world.on_send = lambda: None
    assert world.run().status is CampaignStatus.COMPLETE
    assert world.sent == CLIENTS


def test_abort_is_final() -> None:
    world = World()
    world.order(CampaignStatus.ABORTED)
    with pytest.raises(CampaignRefused, match="is aborted"):
        world.run()
    with pytest.raises(CampaignRefused, match="is aborted already"):
        world.order(CampaignStatus.PAUSED)
    assert world.sent == []


def test_too_many_failures_abort_it() -> None:
    world = World(msgspec.structs.replace(PLAN, abort=AbortRule(failed_share=0.5, after=3)))
    world.on_send = lambda: world.receive(*[Outcome.DELIVERED, Outcome.EXPIRED, Outcome.REJECTED][: world.sends + 1])
    ended = world.run()
    assert (ended.status, ended.reason) == (CampaignStatus.ABORTED, "2 of 3 receipts are failures, more than 50%")
    assert world.sent == CLIENTS[:6]
    assert world.table().campaigns["update"].status is CampaignStatus.ABORTED


def test_nothing_is_sent_after_the_deadline() -> None:
    world = World(msgspec.structs.replace(PLAN, deadline="2s"))
    assert world.run().status is CampaignStatus.EXPIRED
    assert world.sent == CLIENTS[:4]


def test_two_processes_do_not_send_it_together() -> None:
    world = World()
    other: list[Campaign] = []
    runs = iter((True,))

    def start_another() -> None:
        if world.sends == 1 and next(runs, False):
            other.append(world.run())

    world.on_send = start_another
    with pytest.raises(CampaignRefused, match="another process"):
        world.run()
    assert [campaign.status for campaign in other] == [CampaignStatus.COMPLETE]


def test_a_client_that_is_throttled_is_tried_again_at_the_end() -> None:
    world = World()
    world.unreachable = {"c3": "throttled", "c5": "throttled"}

    def release() -> None:
        if world.sends == 5:
            world.unreachable.pop("c5", None)

    world.on_send = release
    assert world.run().status is CampaignStatus.COMPLETE
    assert world.sent == [*(client_id for client_id in CLIENTS if client_id not in ("c3", "c5")), "c5"]
    assert world.table().progress("update") == Progress(sent=10, until=10, unsent={"c3": "throttled"})


def test_a_later_outcome_replaces_an_earlier_one() -> None:
    outcomes = CampaignOutcomes("update")
    outcomes.add(receipt("a", Outcome.DELIVERED, outcome_ms=2))
    outcomes.add(receipt("a", Outcome.EXPIRED, outcome_ms=1))
    outcomes.add(msgspec.structs.replace(receipt("b", Outcome.EXPIRED), message_id="another/b"))
    assert (outcomes.counts(), outcomes.failed) == ({"delivered": 1}, 0)


def test_a_long_client_id_has_a_message_id_that_fits(tmp_path: Path) -> None:
    assert message_id_of("update", "c1") == "update/c1"
    assert len(message_id_of("update", "c" * 1_000)) == len("update/") + 64
