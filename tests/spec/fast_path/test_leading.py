"""The session leaves to a gateway that leads what it may be sending (state/outbound/backlog.py, rule 4)."""

import pytest

from state.outbound import backlog
from tests.scenarios.scenario import Scenario
from tests.spec.fast_path.scenes import Y, at, opened


def led(**settings: object) -> Scenario:
    """The gateway has sent 1 and 2, of which 1 is acknowledged, and the session has read 3 and 4, too."""
    s = opened(**{"max_inflight": 4, "leads_from": 2, "max_backlog_bytes": 1 << 20} | settings)
    with s.micro_batch():
        s.fast_sent("1", Y, at=at(1), previous=0).fast_sent("2", Y + 1, at=at(2), previous=1).puback(Y)
        s.submit("1", at=at(1)).submit("2", at=at(2)).submit("3", at=at(3)).submit("4", at=at(4))
    return s


def published(s: Scenario) -> list[str]:
    return [line for line in s.sees() if line.startswith("PUBLISH")]


def test_the_session_sends_nothing_that_the_gateway_may_be_sending() -> None:
    s = led()
    assert (published(s), s.queued) == ([], ["3", "4"])


def test_a_gateway_with_few_messages_does_not_lead() -> None:
    assert published(led(leads_from=3)) == ["PUBLISH 2 3", "PUBLISH 3 4"]


def test_what_the_gateway_sends_next_is_taken_from_the_queue() -> None:
    s = led()
    with s.micro_batch():
        s.puback(Y + 1).fast_sent("3", Y + 2, at=at(3), previous=2).fast_sent("4", Y + 3, at=at(4), previous=3)
    assert (published(s), s.queued, s.packet_ids) == ([], [], [Y + 2, Y + 3])


def test_a_client_that_has_acknowledged_everything_gets_the_queue() -> None:
    s = led()
    s.sees()
    with s.micro_batch():
        s.fast_sent("3", Y + 2, at=at(3), previous=2).puback(Y + 1, Y + 2)
    assert published(s) == ["PUBLISH 2 4"]


def test_acknowledgements_without_fast_sent_end_the_lead() -> None:
    s = led()
    with s.micro_batch():
        s.fast_sent("3", Y + 2, at=at(3), previous=2)
    s.sees()
    assert published(s.puback(Y + 1)) == ["PUBLISH 2 4"]


def test_the_lead_ends_by_itself() -> None:
    s = led()
    s.sees()
    assert s.session.next_deadline_ms() == s.now_ms + backlog.LEAD_MS
    assert published(s.after(backlog.LEAD_MS / 1_000)) == ["PUBLISH 2 3", "PUBLISH 3 4"]


def test_the_lead_ends_with_the_connection() -> None:
    s = led().lose_connection().connect()
    assert [line.split()[2] for line in published(s)] == ["2", "3", "4"]


@pytest.mark.parametrize(("stores", "sent"), [(True, []), (False, ["PUBLISH qos0 z"])])
def test_qos_0_is_left_to_the_gateway_if_it_can_wait(stores: bool, sent: list[str]) -> None:
    s = opened(max_inflight=4, leads_from=1, max_backlog_bytes=1 << 20, mqueue_store_qos0=stores)
    with s.micro_batch():
        s.fast_sent("1", Y, at=at(1), previous=0).submit("1", at=at(1)).submit("z", qos=0, at=at(2))
    assert published(s) == sent
