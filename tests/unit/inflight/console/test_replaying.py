"""Dead letters, and the two steps in which they are sent again."""

from pathlib import Path

import pytest

from inflight.console.history import REASONS, LettersFilter
from tests.unit.inflight.console.console_client import Desk, Told

ALLOWED = "console.allow_replay=true"


def dry_run(desk: Desk, **fields: str) -> str:
    """Its address, done."""
    answer = desk.browser.post("/replay", data={"token": desk.token(), **fields})
    assert answer.status_code == 303
    desk.work()
    return answer.headers["location"]


def send(desk: Desk, address: str, *, token: str | None = None) -> int:
    data = {"token": desk.token() if token is None else token, "id": address.partition("id=")[2]}
    status = desk.browser.post("/replay/send", data=data).status_code
    desk.work()
    return status


def test_dead_letters_are_listed_with_their_reasons_and_filtered(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Told())
    text = desk.get("/dead-letters", client="pump-7", reason="expired")
    assert desk.history.asked == [("letters", LettersFilter(client_id="pump-7", reason="expired"))]
    assert "<option selected>expired</option>" in text
    assert '<td class="word">expired</td>' in text
    assert '<a class="id" href="/dead-letter?id=0123456789abcdef&amp;client=pump-7">01234567</a>' in text


def test_no_sql_of_a_request_reaches_spark(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Told(), ALLOWED)
    injected = "expired' OR reflect('java.lang.System', 'exit', 0) = '"
    assert desk.browser.get("/dead-letters", params={"reason": injected}).status_code == 400
    assert desk.browser.post("/replay", data={"token": desk.token(), "reason": injected}).status_code == 400
    assert [LettersFilter(client_id=injected, reason=reason).condition for reason in ("", *REASONS)] == [
        None,
        *(f"reason = '{reason}'" for reason in REASONS),
    ]
    with pytest.raises(ValueError, match="is not a valid"):
        _ = LettersFilter(reason=injected).condition


def test_a_dry_run_lists_the_messages_and_sends_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Told(), ALLOWED)
    text = desk.browser.get(dry_run(desk, reason="expired")).text
    assert ("plan", LettersFilter(reason="expired")) in desk.history.asked
    assert "2 would be sent again" in text
    assert "3 not: it has been replayed before" in text
    assert "Send these 2 again" in text
    assert desk.history.sent == []


def test_what_the_dry_run_has_shown_is_sent_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Told(), ALLOWED)
    address = dry_run(desk)
    assert send(desk, address) == 303
    assert send(desk, address) == 303
    assert [len(plan.planned) for plan in desk.history.sent] == [2]
    text = desk.browser.get(address).text
    assert "2 were sent again" in text
    assert "Send these" not in text


def test_a_console_that_may_not_replay_has_no_button_and_refuses(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Told())
    address = dry_run(desk)
    text = desk.browser.get(address).text
    assert "2 would be sent again" in text
    assert "Send these" not in text
    assert "--allow-replay" in text
    assert send(desk, address) == 403
    assert desk.history.sent == []


def test_a_replay_needs_the_token_and_a_dry_run(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Told(), ALLOWED)
    assert desk.browser.post("/replay", data={}).status_code == 403
    address = dry_run(desk)
    assert send(desk, address, token="guessed") == 403
    assert send(desk, "/replay?id=unknown") == 409
    assert desk.browser.get("/replay/send").status_code == 405
    assert desk.browser.get("/replay?id=unknown").status_code == 404
    assert desk.history.sent == []


def test_a_dry_run_that_is_not_done_cannot_be_sent(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Told(), ALLOWED)
    address = desk.browser.post("/replay", data={"token": desk.token()}).headers["location"]
    assert desk.browser.post("/replay/send", data={"token": desk.token(), "id": address.partition("id=")[2]}).status_code == 409
    desk.work()
    assert desk.history.sent == []


def test_a_dry_run_that_finds_nothing_has_no_button(tmp_path: Path) -> None:
    history = Told()
    history.planned = 0
    desk = Desk(tmp_path, history, ALLOWED)
    text = desk.browser.get(dry_run(desk)).text
    assert "0 would be sent again" in text
    assert "Send these" not in text
