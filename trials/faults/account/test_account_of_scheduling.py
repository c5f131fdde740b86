"""trials/faults/account/account_of_scheduling.py: each thing that may go wrong with such a message is noticed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from trials.faults.account.account_of_scheduling import violations
from trials.faults.account.facts import DeviceFacts, Facts, Outcome, Sent
from trials.faults.plan.characters import Character, Keeping

SENT_S, DUE_S = 100.0, 107.0
FOR_LATER, TAKEN_BACK, OLDER, NEWER = "for later", "taken-back", "older", "newer"


class History:
    """One message for later, which comes in its time, one that is taken back, and two with one key."""

    def __init__(self) -> None:
        character = Character(client_id="d", keeping=Keeping.KEPT, level=5, expiry_s=None, will_delay_s=0, patience_s=5.0)
        self.device = DeviceFacts(character=character)
        self.facts = Facts(devices=[self.device])
        self.send(FOR_LATER, "delivered", due_s=DUE_S)
        self.send(TAKEN_BACK, "cancelled", is_cancelled=True)
        self.send(OLDER, "replaced", key="k", detail=f"by {NEWER}, which has the same collapse-key")
        self.send(NEWER, "delivered", key="k")
        self.comes(FOR_LATER, DUE_S)
        self.comes(NEWER, SENT_S)

    def send(
        self,
        message_id: str,
        outcome: str,
        *,
        due_s: float | None = None,
        key: str = "",
        is_cancelled: bool = False,
        detail: str = "",
    ) -> None:
        sent = Sent(message_id=message_id, client_id="d", qos=1, sent_s=SENT_S, due_s=due_s, key=key, is_cancelled=is_cancelled)
        said = Outcome(message_id=message_id, client_id="d", outcome=outcome, final=True, value=b"", detail=detail)
        self.facts.sent.append(sent)
        self.facts.receipts.append(said)

    def comes(self, message_id: str, at_s: float) -> None:
        self.device.first_s[message_id.encode()] = at_s
        self.device.taken[message_id.encode()] = 1

    def sent_differs(self, message_id: str, **changes: str) -> None:
        self.facts.sent = [replace(each, **changes) if each.message_id == message_id else each for each in self.facts.sent]

    def receipt_of_older_says(self, detail: str) -> None:
        self.facts.receipts[2] = replace(self.facts.receipts[2], detail=detail)

    def found(self) -> list[str]:
        return [violation.what for violation in violations(self.facts)]


def test_a_history_in_which_all_is_well_has_no_violation() -> None:
    assert History().found() == []


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda history: history.comes(FOR_LATER, DUE_S - 0.25), "came 0.250 s before its time"),
        (lambda history: history.comes(TAKEN_BACK, SENT_S), "came, and its outcome is cancelled"),
        (lambda history: history.comes(OLDER, SENT_S), "came, and its outcome is replaced"),
        (lambda history: history.receipt_of_older_says("by nobody, …"), "replaced by a message that nobody has sent"),
        (lambda history: history.receipt_of_older_says(""), "replaced by a message that nobody has sent"),
        (lambda history: history.receipt_of_older_says(f"by {OLDER}, …"), "replaced by a message that is not newer"),
        (lambda history: history.sent_differs(NEWER, key="l"), "replaced by a message with another key, or to another client"),
        (lambda history: history.facts.receipts.pop(), "replaced by a message that no session has accepted"),
    ],
    ids=["too early", "cancelled", "replaced", "by nobody", "no reason", "by itself", "another key", "not accepted"],
)
def test_what_must_not_happen_is_found(wrong: Callable[[History], None], expected: str) -> None:
    history = History()
    wrong(history)
    assert history.found() == [expected]


def test_the_newest_message_of_a_key_is_never_replaced() -> None:
    history = History()
    history.send("newest", "replaced", key="k", detail=f"by {NEWER}, which has the same collapse-key")
    assert history.found() == ["replaced by a message that is not newer"]
