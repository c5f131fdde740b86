from pathlib import Path

import pytest

from inflight.console.history import REASONS, LettersFilter
from streaming.history.operator_requests import this_user
from tests.unit.inflight.console.console_client import ConsoleDriver, FakeHistory

ALLOWED = "console.allow_replay=true"


def dry_run(console: ConsoleDriver, **fields: str) -> str:
    """Finishes a dry run; returns the address of its page."""
    answer = console.browser.post("/replay", data={"token": console.token(), **fields})
    assert answer.status_code == 303
    console.work()
    return answer.headers["location"]


def send(console: ConsoleDriver, address: str, *, token: str | None = None) -> int:
    data = {"token": console.token() if token is None else token, "id": address.partition("id=")[2]}
    status = console.browser.post("/replay/send", data=data).status_code
    console.work()
    return status


def test_dead_letters_are_listed_with_their_reasons_and_filtered(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory())
    text = console.get("/dead-letters", client="pump-7", reason="expired")
    assert console.history.asked == [("letters", LettersFilter(client_id="pump-7", reason="expired"))]
    assert "<option selected>expired</option>" in text
    assert '<td class="word" data-label="reason">expired</td>' in text
    assert '<a class="id" href="/dead-letter?id=0123456789abcdef&amp;client=pump-7">01234567</a>' in text


def test_no_sql_of_a_request_reaches_spark(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory(), ALLOWED)
    injected = "expired' OR reflect('java.lang.System', 'exit', 0) = '"
    assert console.browser.get("/dead-letters", params={"reason": injected}).status_code == 400
    assert console.browser.post("/replay", data={"token": console.token(), "reason": injected}).status_code == 400
    assert [LettersFilter(client_id=injected, reason=reason).condition for reason in ("", *REASONS)] == [
        None,
        *(f"reason = '{reason}'" for reason in REASONS),
    ]
    with pytest.raises(ValueError, match="is not a valid"):
        _ = LettersFilter(reason=injected).condition


def test_a_dry_run_lists_the_messages_and_sends_nothing(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory(), ALLOWED)
    text = console.browser.get(dry_run(console, reason="expired")).text
    assert ("plan", LettersFilter(reason="expired")) in console.history.asked
    assert "2 would be sent again" in text
    assert "3 not: it has been replayed before" in text
    assert "Send these 2 again" in text
    assert console.history.sent == []


def test_what_the_dry_run_has_shown_is_sent_once(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory(), ALLOWED)
    address = dry_run(console)
    assert send(console, address) == 303
    assert send(console, address) == 303
    assert [len(plan.planned) for plan in console.history.sent] == [2]
    text = console.browser.get(address).text
    assert "2 were sent again" in text
    assert "Send these" not in text


def test_a_replay_of_the_console_says_for_whom(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory(), ALLOWED)
    assert send(console, dry_run(console)) == 303
    assert console.history.asked[-1] == ("replay", f"{this_user()}, with the console, for testclient")


def test_a_console_that_may_not_replay_has_no_button_and_refuses(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory())
    address = dry_run(console)
    text = console.browser.get(address).text
    assert "2 would be sent again" in text
    assert "Send these" not in text
    assert "--allow-replay" in text
    assert send(console, address) == 403
    assert console.history.sent == []


def test_a_replay_needs_the_token_and_a_dry_run(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory(), ALLOWED)
    assert console.browser.post("/replay", data={}).status_code == 403
    address = dry_run(console)
    assert send(console, address, token="guessed") == 403
    assert send(console, "/replay?id=unknown") == 409
    assert console.browser.get("/replay/send").status_code == 405
    assert console.browser.get("/replay?id=unknown").status_code == 404
    assert console.history.sent == []


def test_a_dry_run_that_is_not_done_cannot_be_sent(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory(), ALLOWED)
    address = console.browser.post("/replay", data={"token": console.token()}).headers["location"]
    assert (
        console.browser.post("/replay/send", data={"token": console.token(), "id": address.partition("id=")[2]}).status_code
        == 409
    )
    console.work()
    assert console.history.sent == []


def test_a_dry_run_that_finds_nothing_has_no_button(tmp_path: Path) -> None:
    history = FakeHistory()
    history.planned = 0
    console = ConsoleDriver(tmp_path, history, ALLOWED)
    text = console.browser.get(dry_run(console)).text
    assert "0 would be sent again" in text
    assert "Send these" not in text


def test_one_dead_letter_has_a_button_for_its_replay(tmp_path: Path) -> None:
    console = ConsoleDriver(tmp_path, FakeHistory(), ALLOWED)
    text = console.get("/dead-letter", id="0123")
    assert '<form action="/replay" method="post">' in text
    assert '<input type="hidden" name="letter" value="0123456789abcdef">' in text
    dry_run(console, letter="0123456789abcdef")
    chosen = LettersFilter(letter_id="0123456789abcdef")
    assert console.history.asked[-1] == ("plan", chosen)
    assert chosen.condition == "dead_letter_id = '0123456789abcdef'"
    for wrong in ("' OR 1=1 --", "0123", "0123456789ABCDEF'"):
        assert console.browser.post("/replay", data={"token": console.token(), "letter": wrong}).status_code == 400
