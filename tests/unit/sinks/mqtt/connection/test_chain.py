"""sinks.mqtt.connection.fast_path: the chain of offers."""

import pytest

from sinks.mqtt.connection.fast_path import Chain, OfferHold


def chain(after: int) -> Chain:
    made = Chain()
    made.handled(after)
    return made


def test_the_next_offer_is_the_one_before_which_nothing_is_missing() -> None:
    assert chain(4).hold(4) is None
    assert chain(4).hold(1) is None
    assert chain(4).hold(5) is OfferHold.GAP


def test_an_accepted_offer_extends_the_chain() -> None:
    taking = chain(4)
    assert taking.take(7, is_granted=True) == 4
    assert taking.hold(7) is None


@pytest.mark.promise("held-offers")
def test_a_broken_chain_is_repaired_when_the_session_handled_the_message() -> None:
    broken = chain(4)
    broken.break_at(6)
    assert broken.hold(4) is OfferHold.BROKEN
    broken.handled(5)
    assert (broken.after, broken.last, broken.hold(5)) == (5, 6, OfferHold.BROKEN)
    broken.handled(6)
    assert broken.hold(6) is None


def test_it_is_broken_at_the_highest_of_several() -> None:
    broken = chain(4)
    broken.break_at(6)
    broken.break_at(8)
    broken.break_at(7)
    broken.handled(7)
    assert broken.hold(7) is OfferHold.BROKEN
    broken.handled(8)
    assert broken.hold(8) is None


def test_an_older_handled_position_changes_nothing() -> None:
    taking = chain(4)
    taking.take(7, is_granted=True)
    taking.handled(5)
    assert taking.after == 7


class TestAChainWithoutAGrant:
    """It begins behind offset 4."""

    def test_an_offer_needs_no_grant_if_nothing_before_it_is_unknown(self) -> None:
        new = Chain(known_to=4, left_at=4)
        assert new.needs_no_grant(4)
        assert not new.needs_no_grant(5)
        assert not chain(4).needs_no_grant(4)
        new.break_at(6)
        assert not new.needs_no_grant(4)

    def test_each_fast_sent_names_the_one_before_it(self) -> None:
        new = Chain(known_to=4, left_at=4)
        assert [new.take(offset, is_granted=False) for offset in (7, 9)] == [-1, 7]
        new.handled(9)
        assert [new.take(11, is_granted=True), new.take(13, is_granted=False)] == [9, 11]

    def test_it_goes_on_over_messages_that_are_left(self) -> None:
        new = Chain(known_to=4, left_at=4)
        new.leave(6)
        assert (new.last, new.reached, new.needs_no_grant(6)) == (6, 6, True)

    def test_a_grant_behind_what_was_left_covers_what_was_taken(self) -> None:
        new = Chain(known_to=4, left_at=4)
        new.take(5, is_granted=False)
        new.leave(6)
        new.take(7, is_granted=False)
        new.handled(5)
        assert (new.after, new.last) == (5, 7), "the message at 6 may not be handled"
        new.handled(6)
        assert new.after == 7

    def test_a_grant_from_before_the_session_covers_nothing(self) -> None:
        new = Chain(known_to=4, left_at=4)
        new.take(5, is_granted=False)
        new.handled(3)
        assert new.after == 3, "a message at 4 may not be handled"

    def test_what_the_session_has_handled_is_known(self) -> None:
        new = Chain(known_to=4, left_at=4)
        new.break_at(8)
        new.handled(8)
        assert new.needs_no_grant(8)
