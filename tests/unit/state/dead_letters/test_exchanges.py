"""Exchanges: RabbitMQ's matching rules. protocol.md, section 6."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.dead_letters.exchanges import (
    DEAD_LETTER_TOPIC,
    DEAD_LETTERS,
    DEFAULT_EXCHANGE,
    Binding,
    Exchange,
    Exchanges,
    ExchangeType,
    parse_destination,
    topic_matches,
)
from state.model import Destination, DestinationKind

A, B, C = (Destination(kind=DestinationKind.TOPIC, name=name) for name in "abc")


def exchange(type_: ExchangeType, *bindings: tuple[str, Destination]) -> Exchanges:
    made = Exchange(name="x", type=type_, bindings=tuple(Binding(key=key, destination=to) for key, to in bindings))
    return Exchanges(declared=(made,))


@pytest.mark.parametrize(
    ("pattern", "key", "fits"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a/b", True),
        ("a/b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("*", "a", True),
        ("*", "", False),
        ("*", "a.b", False),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a..c", True),
        ("#", "", True),
        ("#", "a", True),
        ("#", "a.b.c", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "b.a", False),
        ("#.c", "c", True),
        ("#.c", "a.b.c", True),
        ("a.#.c", "a.c", True),
        ("a.#.c", "a.b.b.c", True),
        ("#.b.#", "a.c", False),
        ("#.#.#", "", True),
        ("*.#", "", False),
        ("*.#", "a", True),
        ("", "", True),
        ("", "a", False),
        ("a", "A", False),
        ("#", "#", True),
        ("*", "#", True),
        ("a.b", "a.#", False),
    ],
)
def test_a_topic_pattern_fits_as_in_rabbitmq(pattern: str, key: str, fits: bool) -> None:
    assert topic_matches(pattern, key) is fits


def _as_regex(pattern: list[str]) -> str:
    """The same in another way: every word with a dot behind it, so that nothing needs a special case."""
    parts = {"#": r"(?:[^.]*\.)*", "*": r"[^.]*\."}
    return "".join(parts.get(word, re.escape(word) + r"\.") for word in pattern)


@given(st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=6), st.lists(st.sampled_from(["a", "b", "c"]), max_size=6))
def test_any_pattern_fits_what_the_regular_expression_of_the_rule_fits(pattern: list[str], key: list[str]) -> None:
    expected = re.fullmatch(_as_regex(pattern), "".join(f"{word}." for word in key)) is not None
    assert topic_matches(".".join(pattern), ".".join(key)) is expected


def test_a_pattern_of_many_hashes_takes_no_exponential_time() -> None:
    assert not topic_matches(".".join(["#", "a"] * 40), ".".join(["a"] * 2_000) + ".b")


def test_a_direct_exchange_wants_the_key_itself() -> None:
    exchanges = exchange(ExchangeType.DIRECT, ("a/b", A), ("#", B), ("a.b", C))
    assert exchanges.route("x", ["a/b"], queue="q") == (A,)


def test_a_fanout_exchange_does_not_look_at_keys() -> None:
    assert exchange(ExchangeType.FANOUT, ("k", A), ("", B)).route("x", ["other"], queue="q") == (A, B)


def test_a_destination_gets_one_copy_whatever_leads_to_it() -> None:
    exchanges = exchange(ExchangeType.TOPIC, ("a", A), ("#", A), ("b", B), ("*", B))
    assert exchanges.route("x", ["a", "b"], queue="q") == (A, B)


def test_a_topic_exchange_gives_nothing_to_a_binding_that_fits_no_key() -> None:
    exchanges = exchange(ExchangeType.TOPIC, ("a.*", A), ("b.#", B), ("c", C))
    assert exchanges.route("x", ["b", "a.x.y"], queue="q") == (B,)


def test_the_default_exchange_routes_to_the_client_of_that_name() -> None:
    clients = (Destination(kind=DestinationKind.CLIENT, name="x"), Destination(kind=DestinationKind.CLIENT, name="y"))
    assert Exchanges().route(DEFAULT_EXCHANGE, ["x", "", "y", "x"], queue="q") == clients


def test_the_exchange_of_the_dead_letter_topic_can_be_replaced() -> None:
    assert Exchanges().route(DEAD_LETTERS, ["k"], queue="q") == (DEAD_LETTER_TOPIC,)
    mine = Exchange(name=DEAD_LETTERS, type=ExchangeType.FANOUT, bindings=(Binding(destination=A),))
    assert Exchanges(declared=(mine,)).route(DEAD_LETTERS, ["k"], queue="q") == (A,)


def test_an_undeclared_exchange_leads_nowhere() -> None:
    exchanges = exchange(ExchangeType.DIRECT, ("k", A))
    assert exchanges.route("y", ["k"], queue="q") == exchanges.route("x", ["other"], queue="q") == ()
    assert exchanges.exists("x")
    assert not exchanges.exists("y")
    assert exchanges.exists("")


def test_a_client_destination_may_contain_the_queue_of_the_death() -> None:
    exchanges = exchange(
        ExchangeType.FANOUT, ("", parse_destination("client:delay/{client}")), ("", parse_destination("client:z"))
    )
    assert [to.name for to in exchanges.route("x", ["k"], queue="lamp")] == ["delay/lamp", "z"]


@pytest.mark.parametrize("text", ["topic:a.b-c_1", "client:gerät/1", "client:client:x"])
def test_a_destination_reads_back_as_it_was_written(text: str) -> None:
    assert str(parse_destination(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parking", "write topic:NAME"),
        ("queue:x", "write topic:NAME"),
        ("topic:", "no topic of Kafka"),
        ("topic:..", "no topic of Kafka"),
        ("topic:a/b", "no topic of Kafka"),
        ("client:", "no client id"),
        ("table:x", "write topic:NAME"),
    ],
)
def test_what_is_no_destination_is_refused_with_what_is_one(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_destination(text)
