"""sinks.fast_path.known_message_ids"""

from sinks.fast_path.known_message_ids import KnownMessageIds
from state.outbound.deduplication import message_digest

A, B, C, D = (message_digest(name) for name in "abcd")


def test_grants_add_to_what_is_known_or_say_all_of_it() -> None:
    known = KnownMessageIds()
    known.granted(A + B, is_snapshot=True, unadopted=[])
    known.granted(C, is_snapshot=False, unadopted=[])
    assert [known.knows(digest) for digest in (A, B, C, D)] == [True, True, True, False]
    known.remember(D)
    known.granted(C, is_snapshot=True, unadopted=[D])
    assert [known.knows(digest) for digest in (A, B, C, D)] == [False, False, True, True]
