"""trials/faults/account/account.py: a run in which all is well has no violation, and each thing that may go wrong is noticed.

So that a run that finds nothing has looked.
"""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from trials.faults.account import (
    account_of_campaigns,
    account_of_presence,
    account_of_routing,
    account_of_scheduling,
    account_of_sessions,
    account_of_takeovers,
)
from trials.faults.account.account import out_of_order, violations
from trials.faults.account.account_of_busy import PROGRESS_TIMEOUT_S
from trials.faults.account.account_of_sessions import ALLOWANCE_S, DRAIN_S, WITHIN_S, deadline_s
from trials.faults.account.facts import (
    Attempt,
    DeviceFacts,
    End,
    Facts,
    LoggedConnection,
    LoggedEnd,
    Outage,
    Outcome,
    Publication,
    Received,
    SaidPresence,
    Sent,
    SessionRow,
    Status,
    Step,
    Suffered,
    Violation,
)
from trials.faults.plan.busy import BUSY
from trials.faults.plan.characters import EXPIRY_S, Character, Keeping
from trials.faults.plan.faults import Fault, Kind, Part, Victim

NOON_S = 1_800_000_000.0


def device(keeping: Keeping) -> DeviceFacts:
    expiry_s = {Keeping.KEPT: 86_400, Keeping.SHORT: EXPIRY_S, Keeping.CLEAN: 0}[keeping]
    character = Character(client_id=keeping, keeping=keeping, level=5, expiry_s=expiry_s, will_delay_s=0, patience_s=5.0)
    return DeviceFacts(character=character)


def attempt(client_id: str, number: int, end: End, *, began_s: float, ended_s: float, clean: bool = False) -> Attempt:
    return Attempt(
        gateway="a",
        will=b"will/%s/%d" % (client_id.encode(), number),
        clean=clean,
        began_s=began_s,
        accepted_s=began_s,
        session_present=number > 0 and not clean,
        heard_s=ended_s,
        ended_s=ended_s,
        end=end,
    )


class Scenario:
    """A device with two connections, the first cut, the second ended by a goodbye; three messages each way at each QoS."""

    def __init__(self, keeping: Keeping = Keeping.KEPT) -> None:
        self.device = device(keeping)
        self.client_id = client_id = self.device.client_id
        self.facts = Facts(devices=[self.device])
        first = attempt(client_id, 0, End.CUT, began_s=NOON_S, ended_s=NOON_S + 10)
        second = attempt(client_id, 1, End.GOODBYE, began_s=NOON_S + 12, ended_s=NOON_S + 20)
        second.absent_since_s = NOON_S + 10
        self.device.attempts = [first, second]
        self.facts.connections = [
            LoggedConnection(client_id=client_id, will=first.will, end=LoggedEnd.OTHER, end_s=NOON_S + 10, next_s=NOON_S + 12),
            LoggedConnection(client_id=client_id, will=second.will, end=LoggedEnd.GOODBYE, end_s=NOON_S + 20),
        ]
        steps = [(0, Step.CONNECTED), (10, Step.DISCONNECTED), (12, Step.CONNECTED), (20, Step.DISCONNECTED)]
        steps += [] if keeping is Keeping.KEPT else [(20 + EXPIRY_S, Step.SESSION_ENDED)]
        self.facts.sessions = [SessionRow(client_id=client_id, step=step, time_s=NOON_S + at_s) for at_s, step in steps]
        after = {Step.CONNECTED: Status.ONLINE, Step.DISCONNECTED: Status.OFFLINE, Step.SESSION_ENDED: Status.GONE}
        self.facts.presence = [
            SaidPresence(
                client_id=client_id,
                status=after[step],
                connection_id=1 + (at_s > 10),
                time_s=NOON_S + at_s,
                since_s=NOON_S + at_s,
            )
            for at_s, step in steps
        ]
        for qos in (1, 2):
            for number in range(3):
                self.message(qos, number)
                self.publication(qos, number)
        self.receive(first.will, "first")

    def message(self, qos: int, number: int) -> None:
        message_id = f"down/{qos}/{number}"
        payload = message_id.encode()
        self.facts.sent.append(Sent(message_id=message_id, client_id=self.client_id, qos=qos, sent_s=NOON_S))
        self.facts.receipts.append(self.receipt(message_id))
        self.device.taken[payload] = self.device.handed[payload] = 1
        self.device.order[qos].append(payload)

    def receipt(self, message_id: str, outcome: str = "delivered", detail: str = "") -> Outcome:
        value = f"{message_id} {outcome}".encode()
        return Outcome(message_id=message_id, client_id=self.client_id, outcome=outcome, final=True, value=value, detail=detail)

    def publication(self, qos: int, number: int) -> None:
        payload = b"up/%d/%d" % (qos, number)
        self.device.publications.append(Publication(payload=payload, qos=qos, sent_s=NOON_S, answered=True))
        self.receive(payload, f"id-{qos}-{number}")

    def receive(self, payload: bytes, inflight_id: str, *, after_s: float = 11.0) -> None:
        record = Received(client_id=self.client_id, payload=payload, inflight_id=inflight_id, time_s=NOON_S + after_s)
        self.facts.uplink.append(record)

    def lose_uplink(self, payload: bytes) -> None:
        self.facts.uplink = [record for record in self.facts.uplink if record.payload != payload]

    def reported(self) -> list[str]:
        return [str(violation) for violation in violations(self.facts)]


@pytest.mark.parametrize("keeping", Keeping)
def test_a_run_in_which_all_is_well_has_no_violation(keeping: Keeping) -> None:
    scenario = Scenario(keeping)
    if keeping is Keeping.CLEAN:  # its second connection is a new session
        scenario.device.attempts[1].clean, scenario.device.attempts[1].session_present = True, False
    assert scenario.reported() == []


@pytest.mark.parametrize(
    "part",
    [
        account_of_campaigns,
        account_of_presence,
        account_of_routing,
        account_of_scheduling,
        account_of_sessions,
        account_of_takeovers,
    ],
)
def test_what_a_part_of_the_account_finds_is_in_the_whole(part: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Violation(client_id="c", what=f"found by {part.__name__}")
    monkeypatch.setattr(part, "violations", lambda facts: iter([found]))
    assert str(found) in Scenario(Keeping.KEPT).reported()


def test_what_may_happen_is_no_violation() -> None:
    """Copies of records, repetitions at QoS 1, and what a session that has ended leaves unfinished."""
    scenario = Scenario(Keeping.SHORT)
    scenario.facts.receipts.append(scenario.facts.receipts[0])
    scenario.facts.uplink.append(scenario.facts.uplink[0])
    scenario.receive(b"up/2/1", "id-2-1")
    scenario.receive(b"up/1/2", "another id")
    scenario.device.taken[b"down/1/0"] = scenario.device.handed[b"down/1/0"] = 3
    scenario.facts.sent.append(Sent(message_id="late", client_id=scenario.client_id, qos=2, sent_s=NOON_S))
    scenario.facts.receipts.append(scenario.receipt("late", "session_ended"))
    scenario.device.publications.append(Publication(payload=b"unheard", qos=2, sent_s=NOON_S, given_up=True))
    assert scenario.reported() == []


def scheduled(scenario: Scenario, message_id: str, outcome: str, *, came: int = 0, detail: str = "", **fields: Any) -> Scenario:
    scenario.facts.sent.append(Sent(message_id=message_id, client_id=scenario.client_id, qos=1, sent_s=NOON_S, **fields))
    scenario.facts.receipts.append(scenario.receipt(message_id, outcome, detail))
    for _ in range(came):
        payload = message_id.encode()
        scenario.device.taken[payload] = scenario.device.handed[payload] = 1
        scenario.device.order[1].insert(0, payload)
    return scenario


def test_what_was_replaced_or_taken_back_need_not_come() -> None:
    scenario = scheduled(Scenario(), "old", "replaced", key="k", detail="by in-time, …")
    scheduled(scheduled(scenario, "back", "cancelled", is_cancelled=True), "in-time", "delivered", came=1, key="k")
    scheduled(scenario, "later", "delivered", came=1, due_s=NOON_S)
    assert scenario.reported() == [], "neither the key nor the time keeps the order of the others"


@pytest.mark.parametrize(
    ("outcome", "came", "fields", "what"),
    [
        ("replaced", 1, {"key": "k"}, "came, and its outcome is replaced"),
        ("cancelled", 1, {"is_cancelled": True}, "came, and its outcome is cancelled"),
        ("replaced", 0, {}, "its outcome is replaced"),
        ("cancelled", 0, {"key": "k"}, "its outcome is cancelled"),
        ("delivered", 0, {"due_s": NOON_S}, "lost; its outcome is delivered"),
    ],
)
def test_what_must_not_become_of_such_a_message(outcome: str, came: int, fields: dict[str, Any], what: str) -> None:
    assert any(what in text for text in scheduled(Scenario(), "x", outcome, came=came, **fields).reported())


def test_messages_with_one_key_come_in_order() -> None:
    scenario = scheduled(scheduled(Scenario(), "k1", "delivered", came=1, key="k"), "k2", "delivered", came=1, key="k")
    assert any("out of order" in text for text in scenario.reported())


Change = Callable[[Scenario], object]


def _lose_message(scenario: Scenario) -> None:
    del scenario.device.taken[b"down/1/1"], scenario.device.handed[b"down/1/1"]
    scenario.device.order[1].remove(b"down/1/1")


def _without_receipt(scenario: Scenario) -> None:
    scenario.facts.receipts.pop()


def _replace_receipt(scenario: Scenario) -> None:
    scenario.facts.receipts[-1] = scenario.receipt("down/2/2", "maxlen")


def _swap(order: list[bytes]) -> None:
    order[0], order[1] = order[1], order[0]


def _swap_uplink(scenario: Scenario) -> None:
    places = [number for number, record in enumerate(scenario.facts.uplink) if record.payload.startswith(b"up/2/")]
    one, two = places[:2]
    uplink = scenario.facts.uplink
    uplink[one], uplink[two] = uplink[two], uplink[one]


WRONG_MESSAGES: dict[str, tuple[Change, str]] = {
    "lost": (_lose_message, "lost; its outcome is delivered"),
    "twice at PUBLISH": (lambda s: s.device.taken.update([b"down/2/1"]), "came 2 times at QoS 2"),
    "twice at PUBREL": (lambda s: s.device.handed.update([b"down/2/1"]), "came 2 times at QoS 2"),
    "never sent": (lambda s: s.device.taken.update([b"nobody's"]), "never sent"),
    "out of order": (lambda s: _swap(s.device.order[1]), "out of order at QoS 1"),
    "against the standard": (lambda s: s.device.oddities.append(("DUP", b"")), "DUP"),
    "no receipt": (_without_receipt, "0 different final receipts"),
    "two receipts": (lambda s: s.facts.receipts.append(s.receipt("down/1/0", "expired")), "2 different final receipts"),
    "another outcome": (_replace_receipt, "its outcome is maxlen"),
    "a foreign receipt": (lambda s: s.facts.receipts.append(s.receipt("nobody's")), "a receipt without a message"),
    "a publication lost": (lambda s: s.lose_uplink(b"up/1/1"), "published, answered and lost"),
    "a publication twice": (lambda s: s.receive(b"up/2/1", "another id"), "handed on 2 times at QoS 2"),
    "a publication out of order": (_swap_uplink, "out of order at QoS 2"),
    "a publication of nobody": (lambda s: s.receive(b"nobody's", "x"), "published by nobody"),
}


@pytest.mark.parametrize(("change", "expected"), WRONG_MESSAGES.values(), ids=WRONG_MESSAGES)
def test_what_goes_wrong_with_a_message_is_noticed(change: Change, expected: str) -> None:
    scenario = Scenario()
    change(scenario)
    reported = scenario.reported()
    assert reported
    assert any(expected in violation for violation in reported), reported


def test_a_receipt_that_says_delivered_is_compared_with_the_device() -> None:
    scenario = Scenario(Keeping.SHORT)
    _lose_message(scenario)
    assert any("has not got it" in violation for violation in scenario.reported())


def _log(scenario: Scenario, number: int, **fields: Any) -> None:
    old = scenario.facts.connections[number]
    scenario.facts.connections[number] = replace(old, **fields)


def _forget_connection(scenario: Scenario) -> None:
    scenario.facts.connections.pop()


def _late_will(scenario: Scenario) -> None:
    scenario.lose_uplink(b"will/short/0")
    scenario.receive(b"will/short/0", "first", after_s=10 + WITHIN_S + 1)


def _row(scenario: Scenario, number: int, *, after_s: float) -> None:
    row = scenario.facts.sessions[number]
    scenario.facts.sessions[number] = replace(row, time_s=row.time_s + after_s)


WRONG_SESSIONS: dict[str, tuple[Change, str]] = {
    "no will": (lambda s: s.lose_uplink(b"will/short/0"), "a will is missing, says the log"),
    "two wills": (lambda s: s.receive(b"will/short/0", "second"), "a will was published 2 times"),
    "a will after a goodbye": (lambda s: s.receive(b"will/short/1", "x"), "after DISCONNECT 0x00"),
    "a late will": (_late_will, "a will came"),
    "a connection that the log does not know": (_forget_connection, "of which the log says nothing"),
    "a clean start that is none": (lambda s: setattr(s.device.attempts[1], "clean", True), "present after a clean start"),
    "a session too short": (lambda s: setattr(s.device.attempts[1], "session_present", False), "gone before its time"),
    "a session too short in the ledger": (lambda s: _row(s, -1, after_s=-1), "its session ended after"),
    "a session too long": (lambda s: _row(s, -1, after_s=ALLOWANCE_S + 1), "its session went on for"),
    "a session without end": (lambda s: s.facts.sessions.pop(), "its session has not ended"),
    "no session": (lambda s: s.facts.sessions.clear(), "the ledger says nothing of its connections"),
}


@pytest.mark.parametrize(("change", "expected"), WRONG_SESSIONS.values(), ids=WRONG_SESSIONS)
def test_what_goes_wrong_with_a_session_is_noticed(change: Change, expected: str) -> None:
    scenario = Scenario(Keeping.SHORT)
    change(scenario)
    reported = scenario.reported()
    assert reported
    assert any(expected in violation for violation in reported), reported


def test_a_will_that_the_log_would_excuse_is_due_when_the_device_says_so() -> None:
    scenario = Scenario()
    scenario.lose_uplink(b"will/kept/0")
    _log(scenario, 0, end=LoggedEnd.GOODBYE)
    assert any("a will is missing, says the device" in violation for violation in scenario.reported())


def test_a_session_that_is_kept_never_ends() -> None:
    scenario = Scenario()
    scenario.facts.sessions.append(SessionRow(client_id="kept", step=Step.SESSION_ENDED, time_s=NOON_S + 30))
    assert any("a session that is kept has ended" in violation for violation in scenario.reported())


def test_a_delayed_will_is_cancelled_by_the_next_connection_only() -> None:
    scenario = Scenario(Keeping.SHORT)
    scenario.device.character = replace(scenario.device.character, will_delay_s=10)
    scenario.lose_uplink(b"will/short/0")
    assert scenario.reported() == []
    _log(scenario, 0, next_s=None)
    assert any("a will is missing" in violation for violation in scenario.reported())


def test_a_goodbye_that_no_gateway_has_read_is_none() -> None:
    scenario = Scenario()
    _log(scenario, 1, end=LoggedEnd.OTHER)
    assert any("a will is missing, says the log" in violation for violation in scenario.reported())
    scenario.receive(b"will/kept/1", "second", after_s=30)
    assert scenario.reported() == []


def test_a_refused_clean_start_has_neither_session_nor_will() -> None:
    scenario = Scenario(Keeping.SHORT)
    first, second = scenario.device.attempts
    scenario.facts.connections.pop(0)
    scenario.lose_uplink(first.will)
    second.session_present = False
    assert len(scenario.reported()) == 2
    scenario.facts.refused = frozenset({first.will})
    assert scenario.reported() == []
    scenario.receive(first.will, "first")
    assert any("no session has accepted" in violation for violation in scenario.reported())


@pytest.mark.parametrize(
    ("fault", "until_s", "wrong"),
    [
        (Fault(victim=Victim.GATEWAY_A, kind=Kind.STALL, part=Part.DEVICES), 10.0 - DRAIN_S, False),
        (Fault(victim=Victim.GATEWAY_A, kind=Kind.STALL, part=Part.DEVICES), 9.9 - DRAIN_S, True),
        (Fault(victim=Victim.GATEWAY_A, kind=Kind.STALL, part=Part.KAFKA), 10.0, True),
        (Fault(victim=Victim.GATEWAY_B, kind=Kind.STALL, part=Part.DEVICES), 10.0, True),
        (Fault(victim=Victim.GATEWAY_A, kind=Kind.CUT, part=Part.DEVICES), 10.0, True),
        (Fault(victim=Victim.GATEWAY_A, kind=Kind.DELAY, part=Part.DEVICES, by_s=EXPIRY_S - 2.0), 10.0, False),
        (Fault(victim=Victim.GATEWAY_A, kind=Kind.DELAY, part=Part.DEVICES, by_s=EXPIRY_S - 2.1), 10.0, True),
    ],
)
def test_what_a_network_has_held_up_was_said_before(fault: Fault, until_s: float, wrong: bool) -> None:
    scenario = Scenario(Keeping.SHORT)  # it heard its first connection until 10 s, and is back after 12
    scenario.device.attempts[0].gateway = Victim.GATEWAY_A
    scenario.device.attempts[1].session_present = False
    scenario.facts.suffered = [Suffered(fault=fault, began_s=NOON_S + 5, ended_s=NOON_S + until_s)]
    assert any("gone before its time" in violation for violation in scenario.reported()) == wrong


def test_an_outage_of_the_engine_begins_a_deadline_anew() -> None:
    outages = [Outage(began_s=105, ended_s=120), Outage(began_s=125, ended_s=130), Outage(began_s=200, ended_s=300)]
    assert deadline_s(100, 10, []) == 110
    assert deadline_s(100, 10, outages) == 140
    assert deadline_s(150, 10, outages) == 160


def test_what_is_missing_is_not_out_of_order() -> None:
    assert out_of_order([b"a", b"c", b"x"], [b"a", b"b", b"c"]) == []
    assert out_of_order([b"c", b"a", b"b"], [b"a", b"b", b"c"]) == [b"a", b"b"]


@pytest.mark.parametrize(("late_s", "wrong"), [(0.0, False), (EXPIRY_S, False), (-0.5, True)])
def test_a_session_may_end_at_once_if_its_device_was_away_long_enough(late_s: float, wrong: bool) -> None:
    """An engine that is behind reads DISCONNECT and the CONNECT that claims the end in one micro-batch."""
    scenario = Scenario(Keeping.SHORT)
    disconnected, ended = scenario.facts.sessions[-2:]
    scenario.facts.sessions[-2:] = [
        replace(disconnected, time_s=disconnected.time_s + max(late_s, 0.0)),
        replace(ended, time_s=ended.time_s + min(late_s, 0.0)),
    ]
    assert any("ended after" in found.what for found in violations(scenario.facts)) is wrong


def test_an_early_end_without_an_accepted_connection_is_noticed() -> None:
    """Its CONNACK was lost, so no absence explains the end."""
    scenario = Scenario(Keeping.SHORT)
    _row(scenario, -1, after_s=-1)
    for attempt in scenario.device.attempts:
        attempt.accepted_s = None
    assert any("its session ended after" in text for text in scenario.reported())


def test_the_end_may_be_in_the_micro_batch_of_what_was_given_up() -> None:
    scenario = Scenario(Keeping.SHORT)
    [published] = [one for one in scenario.device.publications if one.payload == b"up/2/1"]
    published.given_up, published.transmissions = True, 2
    ended_s = scenario.facts.sessions[-1].time_s
    scenario.facts.uplink = [
        replace(record, batch_s=ended_s) if record.payload == published.payload else record for record in scenario.facts.uplink
    ]
    scenario.receive(b"up/2/1", "another id", after_s=ended_s - NOON_S + 1)
    assert not any("handed on" in found.what for found in violations(scenario.facts))


@pytest.mark.parametrize(("after_s", "wrong"), [(21.0 + EXPIRY_S, False), (19.0, True)], ids=["after the end", "before it"])
def test_what_was_given_up_with_its_session_may_come_once_more(after_s: float, wrong: bool) -> None:
    scenario = Scenario(Keeping.SHORT)
    [published] = [one for one in scenario.device.publications if one.payload == b"up/2/1"]
    published.given_up, published.transmissions = True, 2
    scenario.receive(b"up/2/1", "another id", after_s=after_s)
    assert any("handed on 2 times" in found.what for found in violations(scenario.facts)) is wrong
    scenario.receive(b"up/2/1", "a third id", after_s=after_s)
    assert any("handed on 3 times" in found.what for found in violations(scenario.facts))
    published.transmissions = 3
    assert any("handed on" in found.what for found in violations(scenario.facts)) is wrong


@pytest.mark.parametrize(("by_s", "wrong"), [(EXPIRY_S, False), (EXPIRY_S - 0.1, True)])
def test_a_device_may_learn_late_that_its_gateway_has_ended_the_connection(by_s: float, wrong: bool) -> None:
    scenario = Scenario(Keeping.SHORT)
    heard_s = NOON_S + 20
    scenario.device.attempts[-1].gateway, scenario.device.attempts[-1].heard_s = Victim.GATEWAY_A, heard_s
    disconnected, ended = scenario.facts.sessions[-2:]
    scenario.facts.sessions[-2:] = [replace(disconnected, time_s=heard_s), replace(ended, time_s=heard_s)]
    fault = Fault(victim=Victim.GATEWAY_A, kind=Kind.DELAY, part=Part.DEVICES, by_s=by_s)
    scenario.facts.suffered = [Suffered(fault=fault, began_s=heard_s, ended_s=heard_s)]
    assert any("ended after" in found.what for found in violations(scenario.facts)) is wrong


class BusyScenario(Scenario):
    """A busy client with the connections of `Scenario`; its last message has another outcome, sent at `sent_after_s`."""

    def __init__(self, sent_after_s: float = 5.0) -> None:
        super().__init__()
        self.sent_after_s = sent_after_s
        character = replace(self.device.character, client_id=f"{BUSY}-steady")
        self.device.character = character
        old, self.client_id = self.client_id, character.client_id
        facts = self.facts
        for name in ("sent", "receipts", "uplink", "sessions", "connections", "presence"):
            rows: list[Any] = getattr(facts, name)
            rows[:] = [replace(row, client_id=self.client_id) for row in rows if row.client_id == old]

    def drop_one(self) -> None:
        self.facts.sent.append(Sent(message_id="dropped", client_id=self.client_id, qos=1, sent_s=NOON_S + self.sent_after_s))
        self.facts.receipts.append(self.receipt("dropped", "maxlen"))

    def be_away(self, seconds: float) -> None:
        """The second connection begins so long after the end of the first one."""
        for attempt_ in self.device.attempts[1:]:
            attempt_.began_s = NOON_S + 10 + seconds
            attempt_.accepted_s, attempt_.heard_s, attempt_.ended_s = attempt_.began_s, attempt_.began_s, attempt_.began_s


def test_a_run_of_a_busy_client_in_which_all_is_well_has_no_violation() -> None:
    assert BusyScenario().reported() == []


def test_a_message_that_is_dropped_for_a_busy_client_is_a_loss() -> None:
    scenario = BusyScenario()
    scenario.drop_one()
    reported = scenario.reported()
    assert any("lost; its outcome is maxlen" in text for text in reported), reported
    assert any("its outcome is maxlen" in text and "lost" not in text for text in reported), reported


def test_a_busy_client_that_was_away_too_long_may_lose_messages() -> None:
    scenario = BusyScenario()
    scenario.drop_one()
    scenario.be_away(PROGRESS_TIMEOUT_S - 1)
    assert any("lost" in text for text in scenario.reported())
    scenario.be_away(PROGRESS_TIMEOUT_S + 1)
    assert not any("maxlen" in text for text in scenario.reported())


def test_other_times_of_a_client_that_was_away_excuse_nothing() -> None:
    scenario = BusyScenario(sent_after_s=10 + PROGRESS_TIMEOUT_S + 2)
    scenario.drop_one()
    scenario.be_away(PROGRESS_TIMEOUT_S + 1)
    assert any("lost" in text for text in scenario.reported())
