"""sinks.mqtt.connection.fast_path: the chain of offers."""

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
    assert taking.take(7) == 4
    assert taking.hold(7) is None


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
    taking.take(7)
    taking.handled(5)
    assert taking.after == 7
