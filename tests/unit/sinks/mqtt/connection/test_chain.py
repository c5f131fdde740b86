"""sinks.mqtt.connection.chain"""

from sinks.mqtt.connection.chain import Chain, Link


def chain(after: int) -> Chain:
    made = Chain()
    made.handled(after)
    return made


def test_the_next_offer_is_the_one_before_which_nothing_is_missing() -> None:
    assert chain(4).link(4, 5) is Link.NEXT
    assert chain(4).link(1, 9) is Link.NEXT
    assert chain(4).link(5, 9) is Link.GAP


def test_what_was_handled_or_taken_is_known() -> None:
    taking = chain(4)
    assert taking.link(0, 4) is Link.KNOWN
    assert taking.take(7) == 4
    assert taking.link(4, 7) is taking.link(4, 5) is Link.KNOWN
    assert taking.link(7, 8) is Link.NEXT


def test_a_chain_that_is_broken_is_mended_by_the_session_when_it_has_handled_that_message() -> None:
    broken = chain(4)
    broken.break_at(6)
    assert broken.link(4, 6) is broken.link(4, 7) is Link.BROKEN
    assert broken.link(4, 4) is Link.KNOWN
    broken.handled(5)
    assert (broken.after, broken.link(5, 6)) == (5, Link.BROKEN)
    broken.handled(6)
    assert broken.link(6, 7) is Link.NEXT


def test_it_is_broken_at_the_highest_of_several() -> None:
    broken = chain(4)
    broken.break_at(6)
    broken.break_at(8)
    broken.break_at(7)
    broken.handled(7)
    assert broken.link(7, 9) is Link.BROKEN
    broken.handled(8)
    assert broken.link(8, 9) is Link.NEXT


def test_an_old_word_of_the_session_does_not_lead_back() -> None:
    taking = chain(4)
    taking.take(7)
    taking.handled(5)
    assert taking.after == 7
