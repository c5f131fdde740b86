import json
from pathlib import Path
from typing import Any

import pytest

from state.records.dead_letters import REPLAYS, TRUNCATED, TRUNCATED_HEADERS
from streaming.config.settings import Settings
from streaming.history.dead_letters import DeadLetters
from streaming.history.errors import BadQuestion, NothingFound
from streaming.history.replay import ReplayCount, ReplayOptions, SkipReason, letters
from streaming.history.store import Store
from tests.support.stored_history import T0, Record, Topics, archive, at_offsets, ledger, letter, settings_in


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


def listed(settings: Settings, **options: Any) -> list[dict[str, Any]]:
    with Store(settings, list) as store:
        return DeadLetters(store).listed(**options)


def one(settings: Settings, dead_letter_id: str) -> dict[str, Any]:
    with Store(settings, list) as store:
        return DeadLetters(store).one(dead_letter_id)


def candidates(settings: Settings, options: ReplayOptions) -> list[dict[str, Any]]:
    with Store(settings, list) as store:
        return list(DeadLetters(store).candidates(options))


def replayed(dead_letter_id: str, at: int = 0) -> Record:
    return ledger("c", "dead_letter_replayed", at=at, detail=f"{dead_letter_id} sent again")


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [letter["message_id"] for letter in found]


def skips(settings: Settings, options: ReplayOptions) -> dict[str, str | None]:
    return {found["message_id"]: found["skip"] for found in candidates(settings, options)}


def test_the_newest_dead_letters_come_first_and_each_once(settings: Settings, topics: Topics) -> None:
    copies = [letter("c", f"m{age}", T0 - age) for age in (3, 2, 1)]
    topics.add(*at_offsets([*copies, copies[0]]))
    assert ids(listed(settings, limit=2)) == ["m1", "m2"]
    assert len(listed(settings, limit=50)) == 3
    assert listed(settings, limit=50, where="reason = 'maxlen'") == []
    assert ids(listed(settings, limit=50, where=f"died_ms < {T0 - 1}")) == ["m2", "m3"]
    with pytest.raises(BadQuestion, match="the condition is empty"):
        listed(settings, limit=1, where=" ")


def test_a_listed_dead_letter_has_the_fields_of_a_row_as_json(settings: Settings, topics: Topics) -> None:
    topics.add(letter("c", "m", T0, value=b"\xff\x00"))
    (found,) = listed(settings, limit=1)
    assert (found["time"], found["date"]) == ("2026-09-21T14:13:20.000Z", "2026-09-21")
    assert (found["payload"], found["payload_text"]) == ("/wA=", None)
    assert found["headers"][0] == {"key": "message-id", "value": "bQ=="}
    assert json.dumps(found)


def test_a_payload_is_cut_where_a_page_shows_its_beginning(settings: Settings, topics: Topics) -> None:
    topics.add(letter("c", "m", T0, value=b"abcdef"))
    (found,) = listed(settings, limit=1, payload_bytes=2)
    assert (found["payload"], found["payload_text"]) == ("YWI=", "ab")


@pytest.mark.parametrize(("time_ms", "shown"), [((1 << 63) - 1, "9999-12-31T"), (-5, "1970-01-01T")])
def test_a_dead_letter_of_any_time_is_listed(settings: Settings, topics: Topics, time_ms: int, shown: str) -> None:
    topics.add(Record("inflight.dead-letters", 0, 0, time_ms, b"c", b"p", []))
    (found,) = listed(settings, limit=1)
    assert found["time"].startswith(shown)
    assert found["headers"] == []


def test_one_dead_letter_is_found_by_the_beginning_of_its_id(settings: Settings, topics: Topics) -> None:
    topics.add(*at_offsets([letter("c", "m1", T0), letter("c", "m2", T0)]))
    wanted = listed(settings, limit=9)[0]
    found = one(settings, wanted["dead_letter_id"][:10])
    assert found["headers"][0] == {"key": "message-id", "value": wanted["message_id"]}
    with pytest.raises(NothingFound, match="there is no dead letter 'zz'"):
        one(settings, "zz")
    with pytest.raises(NothingFound, match="several"):
        one(settings, "")


def test_a_replay_skips_what_would_be_sent_in_circles(settings: Settings, topics: Topics) -> None:
    topics.add(
        *at_offsets(
            [
                letter("c", "twice", T0 - 9),
                letter("c", "twice", T0 - 1),
                letter("c", "often", T0, (REPLAYS, b"3")),
                letter("", "lost", T0),
                letter("c", "cut", T0, (TRUNCATED, b"1")),
                letter("c", "cut-headers", T0, (TRUNCATED_HEADERS, b"9")),
                letter("c", "old", T0 - 100),
                letter("c", "fine", T0),
                letter("c", "done", T0),
            ]
        )
    )
    done_id = next(found["dead_letter_id"] for found in listed(settings, limit=9) if found["message_id"] == "done")
    topics.add(ledger("c", "sent", at=7, time_ms=T0 - 50), replayed(done_id, at=8))  # Kafka has deleted what was before
    found = candidates(settings, ReplayOptions(where=None))
    assert [(letter["message_id"], letter["skip"]) for letter in found if letter["message_id"] == "twice"] == [
        ("twice", SkipReason.SUPERSEDED.name),
        ("twice", None),
    ]
    assert skips(settings, ReplayOptions(where=None)) | {"twice": None} == {
        "twice": None,
        "often": SkipReason.TOO_OFTEN.name,
        "lost": SkipReason.NO_CLIENT.name,
        "cut": SkipReason.CUT.name,
        "cut-headers": SkipReason.CUT.name,
        "old": SkipReason.NOT_KNOWN.name,
        "fine": None,
        "done": SkipReason.REPLAYED_BEFORE.name,
    }
    again = skips(settings, ReplayOptions(where=None, again=True, to="d", max_replays=9))
    assert [name for name, skip in again.items() if skip] == ["cut", "cut-headers"]
    assert list(skips(settings, ReplayOptions(where="message_id = 'fine' -- only"))) == ["fine"]


def test_a_replay_that_only_the_archive_knows_is_not_repeated(settings: Settings, topics: Topics) -> None:
    archive(settings, letter("c", "done", T0))
    (found,) = listed(settings, limit=1)
    archive(settings, replayed(found["dead_letter_id"]))
    topics.add(letter("c", "new", T0 + 1, at=1))
    assert skips(settings, ReplayOptions(where=None)) == {"done": SkipReason.REPLAYED_BEFORE.name, "new": None}


def test_what_is_planned_can_be_sent(settings: Settings, topics: Topics) -> None:
    topics.add(letter("c", "m", T0, value=b"\xff"))
    count = ReplayCount()
    options = ReplayOptions(where=None)
    (chosen,) = letters(candidates(settings, options), options, count)
    assert (chosen.client_id, chosen.message.message_id, chosen.message.payload, chosen.message.topic) == ("c", "m", b"\xff", "t")
    assert count.matched == 1
