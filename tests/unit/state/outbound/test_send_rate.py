"""state.outbound.send_rate: a token bucket of whole numbers."""

from hypothesis import given
from hypothesis import strategies as st

from state.outbound.send_rate import SendRate

STEPS = st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 50)), max_size=40)


@given(st.integers(1, 40), STEPS)
def test_no_span_of_time_has_more_than_its_rate_and_one_second(per_s: int, steps: list[tuple[int, int]]) -> None:
    rate, now_ms, sent = SendRate(per_s), 1_000_000, []
    for passed_ms, wanted in steps:
        now_ms += passed_ms
        for _ in range(min(wanted, rate.tokens(now_ms))):
            rate.spend(now_ms)
            sent.append(now_ms)
    for first, begin_ms in enumerate(sent):
        for last, end_ms in enumerate(sent[first:], start=first):
            assert (last - first + 1) * 1_000 <= per_s * (end_ms - begin_ms + 1_000)


@given(st.integers(1, 40), STEPS, st.integers(1, 100))
def test_at_the_time_that_it_names_there_are_tokens_and_not_before(
    per_s: int, steps: list[tuple[int, int]], waiting: int
) -> None:
    rate, now_ms = SendRate(per_s), 1_000_000
    for passed_ms, wanted in steps:
        now_ms += passed_ms
        for _ in range(min(wanted, rate.tokens(now_ms))):
            rate.spend(now_ms)
    wanted = min(waiting, max(1, per_s // 2))
    next_ms = rate.next_ms(waiting)
    assert rate.tokens(max(next_ms, now_ms)) >= wanted
    assert rate.tokens(now_ms) >= wanted or (next_ms > now_ms and rate.tokens(next_ms - 1) < wanted)


def test_a_pause_fills_it_with_the_messages_of_one_second() -> None:
    rate = SendRate(7)
    assert (rate.tokens(0), rate.tokens(10**12)) == (7, 7)
    rate.spend(10**12)
    assert (rate.tokens(10**12), rate.tokens(10**12 + 142), rate.tokens(10**12 + 143)) == (6, 6, 7)


def test_a_stored_level_is_no_higher_than_a_lower_rate_allows() -> None:
    rate = SendRate(2)
    rate.restore(9_000, 500)
    assert (rate.level, rate.at_ms, rate.tokens(500)) == (2_000, 500, 2)
