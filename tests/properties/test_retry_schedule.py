"""A message is resent exactly when the schedule says, on every run, with any schedule and any silence."""

from itertools import accumulate, chain, pairwise, repeat

from hypothesis import given
from hypothesis import strategies as st

from state.commands import SendPublish
from state.settings import SessionSettings
from streaming.config.settings import Settings
from tests.scenarios.scenario import START_MS, Scenario

waits = st.lists(st.integers(100, 10_000_000), min_size=1, max_size=6).map(sorted)


def settings_of(schedule: list[int], **changes: object) -> SessionSettings:
    return Settings(session={"retry_interval": schedule, **changes}).session


def sent_at(s: Scenario, calls: int) -> list[int]:
    """Returns the times of PUBLISHes in ms if every deadline is met. The scenario executes activations twice."""
    times = []
    for _ in range(calls):
        deadline_ms = s.session.next_deadline_ms()
        assert deadline_ms is not None
        before = len(s.sent(SendPublish))
        s.after((deadline_ms - s.now_ms) / 1_000)
        times += [s.now_ms] * (len(s.sent(SendPublish)) - before)
    return times


@given(waits, st.integers(1, 10))
def test_the_nth_resend_comes_after_the_sum_of_the_first_n_waits(schedule: list[int], count: int) -> None:
    s = Scenario(settings=settings_of(schedule, delivery_limit=-1)).connect().submit("a")
    expected = accumulate(chain(schedule, repeat(schedule[-1])), initial=START_MS)
    assert [START_MS, *sent_at(s, count)] == [at_ms for at_ms, _ in zip(expected, range(count + 1), strict=False)]


@given(waits, st.lists(st.integers(0, 20_000_000), max_size=8))
def test_a_wait_never_ends_early_and_one_call_makes_at_most_one_step(schedule: list[int], gaps_ms: list[int]) -> None:
    """The engine may run at any time: between two transmissions lies at least the wait that was due."""
    s = Scenario(settings=settings_of(schedule, delivery_limit=-1)).connect().submit("a")
    times = [START_MS]
    for gap_ms in gaps_ms:
        s.later(gap_ms / 1_000)
        before = len(s.sent(SendPublish))
        s.handle()
        sent = len(s.sent(SendPublish)) - before
        assert sent <= 1
        times += [s.now_ms] * sent
    for number, (earlier_ms, later_ms) in enumerate(pairwise(times)):
        assert later_ms - earlier_ms >= schedule[min(number, len(schedule) - 1)]


@given(st.integers(100, 86_400_000))
def test_one_duration_and_a_list_of_it_are_the_same(wait_ms: int) -> None:
    single = Settings(session={"retry_interval": wait_ms}).session
    assert settings_of([wait_ms]) == single == SessionSettings(retry_interval_ms=wait_ms)
