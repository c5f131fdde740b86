"""trials/faults/account/account_of_campaigns.py, and what account.py says of the messages of campaigns."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from trials.faults.account import account
from trials.faults.account.facts import CampaignFacts, DeviceFacts, Facts, Outcome, Sent
from trials.faults.plan.characters import Character, Keeping

CLIENTS = ("one", "two", "three")


class History:
    """A campaign at QoS 2 to two of three devices; its process was killed four times."""

    def __init__(self) -> None:
        self.devices = {client_id: _device(client_id) for client_id in CLIENTS}
        campaign = CampaignFacts(campaign_id="c", client_ids=CLIENTS[:2], kills=4, status="complete", listed=CLIENTS[:2], sent=2)
        self.facts = Facts(devices=list(self.devices.values()), campaigns=[campaign])
        for client_id in campaign.client_ids:
            sent = Sent(message_id=f"c/{client_id}", client_id=client_id, qos=2, sent_s=100.0, campaign="c")
            self.facts.sent.append(sent)
            self.says(client_id)
            self.comes(client_id)

    def says(self, client_id: str, outcome: str = "delivered") -> None:
        self.facts.receipts.append(
            Outcome(message_id=f"c/{client_id}", client_id=client_id, outcome=outcome, final=True, value=outcome.encode())
        )

    def comes(self, client_id: str, times: int = 1) -> None:
        device = self.devices[client_id]
        device.taken, device.handed = Counter({b"c": times}), Counter({b"c": times})

    def never_comes(self, client_id: str) -> None:
        self.devices[client_id].taken.clear()
        self.devices[client_id].handed.clear()

    def differs(self, **changes: object) -> None:
        self.facts.campaigns = [replace(self.facts.campaigns[0], **changes)]

    def found(self) -> list[str]:
        return [str(violation) for violation in account.violations(self.facts)]


def _device(client_id: str) -> DeviceFacts:
    character = Character(client_id=client_id, keeping=Keeping.KEPT, level=5, expiry_s=None, will_delay_s=0, patience_s=5.0)
    return DeviceFacts(character=character)


def test_a_campaign_that_reaches_each_client_once_is_right() -> None:
    assert History().found() == []


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda history: history.never_comes("one"), "one: lost; its outcome is delivered (c)"),
        (lambda history: history.comes("one", 2), "one: came 2 times at QoS 2 (c)"),
        (lambda history: history.comes("three"), "three: came and was never sent to it (c)"),
        (lambda history: history.facts.receipts.pop(), "two: 0 different final receipts (c)"),
        (lambda history: history.says("two", "expired"), "two: 2 different final receipts (c)"),
        (lambda history: history.differs(status="running"), "c: the campaign is running after 4 kills"),
        (lambda history: history.differs(status=""), "c: the campaign is not in the log after 4 kills"),
        (lambda history: history.differs(sent=1), "c: complete with 1 of 2 clients"),
        (lambda history: history.differs(listed=CLIENTS), "c: its list is not the one with which it began"),
        (lambda history: history.differs(unsent=frozenset({"three"})), "c: unsent to three, which it does not address"),
    ],
    ids=["lost", "twice", "to another", "no receipt", "two receipts", "not complete", "no state", "half", "list", "unsent"],
)
def test_what_must_not_become_of_a_campaign_is_found(wrong: Callable[[History], None], expected: str) -> None:
    history = History()
    wrong(history)
    assert expected in history.found()


def test_a_client_to_which_nothing_could_be_sent_gets_nothing() -> None:
    history = History()
    history.differs(unsent=frozenset({"two"}))
    history.facts.sent.pop()  # as devices/campaigns.py leaves it out
    history.facts.receipts.pop()
    assert history.found() == ["two: came and was never sent to it (c)"]
    history.never_comes("two")
    assert history.found() == []
