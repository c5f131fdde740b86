"""sinks.fast_path.known_message_ids"""

from sinks.fast_path.known_message_ids import KnownMessageIds
from state.outbound.deduplication import message_digest

A, B, C, D = (message_digest(name) for name in "abcd")


def test_grants_add_to_what_is_known_or_say_all_of_it() -> None:
    known = KnownMessageIds(10)
    known.granted(A + B, of_all=True, unadopted=[])
    known.granted(C, of_all=False, unadopted=[])
    assert [known.knows(digest) for digest in (A, B, C, D)] == [True, True, True, False]
    known.remember(D)
    known.granted(C, of_all=True, unadopted=[D])
    assert [known.knows(digest) for digest in (A, B, C, D)] == [False, False, True, True]


def test_what_the_session_has_forgotten_for_certain_is_forgotten() -> None:
    known = KnownMessageIds(2)
    for number in range(5):
        known.remember(message_digest(str(number)))
    assert [known.knows(message_digest(str(number))) for number in range(5)] == [False, True, True, True, True]


def test_a_session_without_deduplication_knows_nothing() -> None:
    known = KnownMessageIds(0)
    known.remember(A)
    assert not known.knows(A)
