"""Policies: which one holds, and which may not be loaded. protocol.md, section 6."""

import fnmatch
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.dead_letters.exchanges import Exchange, Exchanges, ExchangeType
from state.dead_letters.policy import NO_POLICY, Permission, Policies, Policy, covers, permitted, policy_problems

EXCHANGES = Exchanges(declared=(Exchange(name="retry", type=ExchangeType.FANOUT),))


def test_the_highest_priority_holds_alone() -> None:
    policies = Policies(
        (
            Policy(name="all", clients="*", message_ttl_ms=1),
            Policy(name="lamps", clients="lamp-*", priority=5, dead_letter_exchange="retry"),
            Policy(name="low", clients="lamp-*", priority=-5),
        )
    )
    assert policies.of("lamp-1").name == "lamps"
    assert policies.of("lamp-1").message_ttl_ms is None
    assert policies.of("door-1").name == "all"


def test_between_equal_priorities_the_first_one_holds() -> None:
    assert Policies((Policy(name="one"), Policy(name="two"))).of("x").name == "one"


def test_without_a_policy_that_fits_the_default_holds() -> None:
    assert Policies((Policy(name="a", clients="a"),)).of("b") is NO_POLICY


def test_the_key_of_a_policy_may_name_the_client() -> None:
    assert Policy(dead_letter_routing_key="back/{client}").routing_key("lamp") == "back/lamp"
    assert Policy().routing_key("lamp") is None


def test_after_the_limit_of_deaths_the_other_exchange_takes_over() -> None:
    policy = Policy(dead_letter_exchange="retry", dead_letter_limit=2, limit_exchange="parking")
    assert [policy.exchange_after(deaths) for deaths in range(4)] == ["retry", "retry", "parking", "parking"]


@pytest.mark.parametrize(
    ("policy", "key", "message"),
    [
        (Policy(dead_letter_exchange="nope"), "dead_letter_exchange", "declared nowhere"),
        (Policy(dead_letter_limit=1, limit_exchange="nope"), "limit_exchange", "declared nowhere"),
        (Policy(limit_exchange="retry"), "limit_exchange", "without dead_letter_limit"),
        (Policy(owner="bob"), "owner", "has no [[permissions]]"),
        (Policy(owner="ann", clients="*", dead_letter_exchange="retry"), "clients", "more than 'ann' may read: allowed: lamp-*"),
        (Policy(owner="ann", clients="lamp-1", dead_letter_exchange=""), "dead_letter_exchange", "allowed: retry*"),
        (
            Policy(owner="ann", clients="lamp-1", dead_letter_exchange="retry", dead_letter_limit=1),
            "limit_exchange",
            "'dead-letters' is nothing that 'ann' may write to",
        ),
    ],
)
def test_a_policy_that_may_not_be_loaded_is_named_with_what_is_allowed(policy: Policy, key: str, message: str) -> None:
    ann = Permission(owner="ann", read=("lamp-*",), write=("retry*",))
    problems = list(policy_problems((Policy(name="fine"), policy), EXCHANGES, (ann,)))
    assert [(index, found) for index, found, _ in problems] == [(1, key)]
    assert message in problems[0][2]


def test_an_owner_may_do_what_was_granted() -> None:
    ann = Permission(owner="ann", read=("lamp-*",), write=("retry*",))
    policy = Policy(owner="ann", clients="lamp-?", dead_letter_exchange="retry")
    assert list(policy_problems((policy,), EXCHANGES, (ann,))) == []


def test_a_policy_knows_what_its_owner_may_write_to() -> None:
    ann = Permission(owner="ann", write=("retry*", "x"))
    of_ann, of_bob, of_nobody = permitted((Policy(owner="ann"), Policy(owner="bob"), Policy()), (ann,))
    names = ("retry-2", "x", "xx", "")
    assert [of_ann.may_write(name) for name in names] == [True, True, False, False]
    assert not any(of_bob.may_write(name) for name in names)
    assert all(of_nobody.may_write(name) for name in names)


def test_two_policies_of_one_name_are_refused() -> None:
    problems = list(policy_problems((Policy(name="a"), Policy(name="a")), EXCHANGES))
    assert [(index, key) for index, key, _ in problems] == [(1, "name")]


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("*", "lamp-*", True),
        ("lamp-*", "lamp-1*", True),
        ("lamp-*", "lamp-", True),
        ("lamp-*", "lamp*", False),
        ("lamp-?", "lamp-1", True),
        ("lamp-?", "lamp-*", False),
        ("lamp-?", "lamp-?", True),
        ("*-*", "a-b*", True),
        ("a*b*c", "a*c", False),
        ("a*c", "a*b*c", True),
        ("[ab]*", "a*", True),
        ("[ab]", "c", False),
        ("[ab]", "[ab]", True),
        ("?", "[ab]", True),
        ("a", "[ab]", False),
        ("?*", "*", False),
        ("*", "", True),
        ("?x", "[]x", False),
        ("?", "[]x]", True),
        ("?", "[!]", False),
        ("??", "[!]", False),
        ("[!]", "[!]", True),
        ("?", "[^]x]", False),
    ],
)
def test_a_pattern_covers_another_when_nothing_can_slip_through(wide: str, narrow: str, expected: bool) -> None:
    assert covers(wide, narrow) is expected


_PATTERNS = st.text(alphabet="ab*?[]!^", max_size=5)
_TEXTS = ["".join(letters) for length in range(6) for letters in product("abc", repeat=length)]
_TEXTS += ["".join(letters) for length in range(5) for letters in product("a[]!^", repeat=length)]


@given(_PATTERNS, _PATTERNS)
def test_whoever_covers_a_pattern_fits_every_text_that_fits_it(wide: str, narrow: str) -> None:
    if covers(wide, narrow):
        assert all(fnmatch.fnmatchcase(text, wide) for text in _TEXTS if fnmatch.fnmatchcase(text, narrow))
