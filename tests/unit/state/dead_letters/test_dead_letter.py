"""The death history and the cycle rule. protocol.md, section 6; tests/scenarios/test_dead_letters.py has the scenarios."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.dead_letters.dead_letter import closes_cycle, dead_letter, death_count, return_id, with_death
from state.dead_letters.exchanges import Binding, Exchange, Exchanges, ExchangeType
from state.dead_letters.policy import Policy
from state.model import Death, DeathHistory, Destination, DestinationKind, Message, Outcome

MESSAGE = Message(message_id="m", topic="a/b", payload=b"p", expiration_ms=5_000, expires_at_ms=9_000, accepted_ms=4_000)


def died(message: Message, *deaths: tuple[str, Outcome], exchange: str = "x") -> Message:
    """Returns the message with these deaths, the first one first, a second apart."""
    for number, (queue, reason) in enumerate(deaths):
        message = with_death(message, queue=queue, reason=reason, time_ms=1_000 * (number + 1), exchange=exchange)
    return message


def history(message: Message) -> DeathHistory:
    assert message.history is not None
    return message.history


def client(name: str) -> Destination:
    return Destination(kind=DestinationKind.CLIENT, name=name)


def deaths(*newest_first: tuple[str, str]) -> tuple[Death, ...]:
    return tuple(
        Death(queue=queue, reason=Outcome(reason), time_ms=0, exchange="", routing_keys=()) for queue, reason in newest_first
    )


def test_the_first_death_is_the_whole_history() -> None:
    message = died(MESSAGE, ("q", Outcome.EXPIRED))
    assert history(message) == DeathHistory(
        deaths=(
            Death(
                queue="q",
                reason=Outcome.EXPIRED,
                time_ms=1_000,
                exchange="",
                routing_keys=("a/b",),
                count=1,
                original_expiration_ms=5_000,
            ),
        ),
        first_reason=Outcome.EXPIRED,
        first_queue="q",
        first_exchange="",
        last_exchange="",
        last_time_ms=1_000,
        exchange="x",
        routing_key="a/b",
    )


def test_a_repeated_death_counts_and_moves_to_the_front() -> None:
    message = died(MESSAGE, ("q", Outcome.EXPIRED), ("r", Outcome.EXPIRED), ("q", Outcome.REJECTED), ("q", Outcome.EXPIRED))
    found = history(message)
    assert [(death.queue, death.reason, death.count) for death in found.deaths] == [
        ("q", Outcome.EXPIRED, 2),
        ("q", Outcome.REJECTED, 1),
        ("r", Outcome.EXPIRED, 1),
    ]
    assert (found.deaths[0].time_ms, found.deaths[0].exchange, found.deaths[0].original_expiration_ms) == (1_000, "", 5_000)
    assert (found.first_queue, found.first_reason, found.last_exchange, found.last_time_ms) == ("q", Outcome.EXPIRED, "x", 4_000)
    assert death_count(message) == 4
    assert death_count(message, queue="q") == 3
    assert death_count(message, queue="q", reason=Outcome.EXPIRED) == 2


def test_the_time_to_live_goes_with_the_first_death() -> None:
    message = died(MESSAGE, ("q", Outcome.EXPIRED), ("r", Outcome.EXPIRED))
    assert (message.expiration_ms, message.expires_at_ms) == (None, None)
    assert [death.original_expiration_ms for death in history(message).deaths] == [None, 5_000]


@pytest.mark.parametrize("reason", [Outcome.REJECTED, Outcome.MAXLEN, Outcome.DELIVERY_LIMIT, Outcome.SESSION_ENDED])
def test_the_history_has_no_time_to_live_without_an_expiry(reason: Outcome) -> None:
    message = died(MESSAGE, ("q", reason))
    assert (message.expiration_ms, history(message).deaths[0].original_expiration_ms) == (None, None)


def test_copies_are_shown_in_the_history_and_blind_copies_are_not() -> None:
    message = msgspec.structs.replace(MESSAGE, headers=(("CC", b'["c","d"]'), ("BCC", b'["s"]')))
    assert history(died(message, ("q", Outcome.MAXLEN))).deaths[0].routing_keys == ("a/b", "c", "d")


def test_the_next_death_has_exchange_and_key_of_the_last_publishing() -> None:
    message = msgspec.structs.replace(MESSAGE, headers=(("CC", b'["c"]'), ("other", b"1")))
    message = with_death(message, queue="q", reason=Outcome.MAXLEN, time_ms=1, exchange="x", override="k")
    assert message.headers == (("other", b"1"),)
    message = with_death(message, queue="r", reason=Outcome.MAXLEN, time_ms=2, exchange="y")
    assert [(death.exchange, death.routing_keys) for death in history(message).deaths] == [("x", ("k",)), ("", ("a/b", "c"))]
    assert history(message).routing_key == "k"


@pytest.mark.parametrize("value", [b"c", b'"c"', b"[1]", b"{", b'["\xff"]', b"[" * 10_000])
def test_copies_that_are_no_list_of_texts_are_none(value: bytes) -> None:
    message = msgspec.structs.replace(MESSAGE, headers=(("CC", value),))
    assert history(died(message, ("q", Outcome.INVALID))).deaths[0].routing_keys == ("a/b",)


@pytest.mark.parametrize(
    ("newest_first", "target", "closes"),
    [
        ([("a", "expired")], "a", True),
        ([("a", "expired")], "b", False),
        ([("b", "expired"), ("a", "expired")], "a", True),
        ([("b", "expired"), ("a", "rejected")], "a", False),
        ([("b", "rejected"), ("a", "expired")], "a", False),
        ([("b", "maxlen"), ("c", "rejected"), ("a", "expired")], "a", False),
        ([("a", "maxlen"), ("c", "rejected"), ("a", "expired")], "a", True),
        ([("a", "rejected")], "a", False),
        ([("b", "delivery_limit"), ("a", "maxlen"), ("c", "rejected")], "a", True),
    ],
)
def test_a_cycle_is_closed_when_nobody_rejected_since_the_last_death_there(
    newest_first: list[tuple[str, str]], target: str, closes: bool
) -> None:
    assert closes_cycle(client(target), deaths(*newest_first)) is closes


def test_only_queues_can_close_a_cycle() -> None:
    assert not closes_cycle(Destination(kind=DestinationKind.TOPIC, name="a"), deaths(("a", "expired")))


_DEATHS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([Outcome.EXPIRED, Outcome.MAXLEN, Outcome.REJECTED])))


@given(_DEATHS)
def test_any_history_has_each_queue_and_reason_once_and_all_deaths_counted(steps: list[tuple[str, Outcome]]) -> None:
    message = died(MESSAGE, ("first", Outcome.EXPIRED), *steps)
    found = history(message)
    assert len({(death.queue, death.reason) for death in found.deaths}) == len(found.deaths)
    assert death_count(message) == len(steps) + 1
    assert (found.first_queue, found.first_reason) == ("first", Outcome.EXPIRED)
    assert (found.deaths[0].queue, found.deaths[0].reason) == (steps[-1] if steps else ("first", Outcome.EXPIRED))
    order = [pair for index, pair in enumerate(steps) if pair not in steps[index + 1 :]]
    assert [(death.queue, death.reason) for death in found.deaths[:-1]] == order[::-1]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=40))
def test_without_a_rejection_no_message_visits_a_queue_twice(targets: list[str]) -> None:
    """Following the exchanges ends, whatever they are."""
    message, queue = MESSAGE, "start"
    visited = [queue]
    for target in targets:
        message = with_death(message, queue=queue, reason=Outcome.EXPIRED, time_ms=0, exchange="x")
        if not closes_cycle(client(target), history(message).deaths):
            queue = target
            visited.append(queue)
            assert len(visited) == len(set(visited))


def test_repetitions_of_one_return_have_one_id_and_other_returns_another() -> None:
    once = died(MESSAGE, ("q", Outcome.EXPIRED))
    assert return_id(once) == return_id(died(MESSAGE, ("q", Outcome.EXPIRED)))
    assert len({return_id(message) for message in (MESSAGE, once, died(once, ("q", Outcome.EXPIRED)))}) == 3


def test_one_letter_for_each_destination_and_the_reason_on_it() -> None:
    bindings = tuple(
        Binding(destination=to) for to in (client("b"), client("q"), Destination(kind=DestinationKind.TOPIC, name="t"))
    )
    exchanges = Exchanges(declared=(Exchange(name="x", type=ExchangeType.FANOUT, bindings=bindings),))
    found = dead_letter(
        MESSAGE,
        queue="q",
        reason=Outcome.EXPIRED,
        time_ms=1,
        policy=Policy(dead_letter_exchange="x"),
        exchanges=exchanges,
        detail="late",
    )
    assert [str(letter.destination) for letter in found.letters] == ["client:b", "topic:t"]
    assert found.cycles == (client("q"),)
    assert {(letter.reason, letter.detail, letter.message) for letter in found.letters} == {
        (Outcome.EXPIRED, "late", found.letters[0].message)
    }
    assert found.fault == ""
