"""sinks.mqtt.connection.fast_path: the chain of offers."""

from sinks.mqtt.connection.fast_path import Chain, OfferRefusal


def chain(after: int) -> Chain:
    made = Chain()
    made.handled(after)
    return made


def test_the_next_offer_is_the_one_before_which_nothing_is_missing() -> None:
    assert chain(4).refusal(4, 5) is None
    assert chain(4).refusal(1, 9) is None
    assert chain(4).refusal(5, 9) is OfferRefusal.GAP


def test_an_accepted_offer_extends_the_chain() -> None:
    taking = chain(4)
    assert taking.take(7) == 4
    assert taking.refusal(7, 8) is None


def test_a_broken_chain_is_repaired_when_the_session_handled_the_message() -> None:
    broken = chain(4)
    broken.break_at(6)
    assert broken.refusal(4, 6) is broken.refusal(4, 7) is OfferRefusal.BROKEN
    broken.handled(5)
    assert (broken.after, broken.refusal(5, 6)) == (5, OfferRefusal.BROKEN)
    broken.handled(6)
    assert broken.refusal(6, 7) is None


def test_it_is_broken_at_the_highest_of_several() -> None:
    broken = chain(4)
    broken.break_at(6)
    broken.break_at(8)
    broken.break_at(7)
    broken.handled(7)
    assert broken.refusal(7, 9) is OfferRefusal.BROKEN
    broken.handled(8)
    assert broken.refusal(8, 9) is None


def test_an_older_handled_position_changes_nothing() -> None:
    taking = chain(4)
    taking.take(7)
    taking.handled(5)
    assert taking.after == 7
