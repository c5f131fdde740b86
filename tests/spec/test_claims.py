"""protocol.md, section 1: a gateway says what its CONNACK has said about the session, and the session verifies it."""

import pytest

from state.commands import AcceptConnection, AnnounceSubscriptions, CloseConnection, EndSessionMark, MarkSession
from state.events import Claim
from state.model import Outcome, ReasonCode
from tests.scenarios.scenario import Scenario, will


def accepted(s: Scenario) -> list[tuple[int, bool]]:
    return [(command.connection_id, command.session_present) for command in s.sent(AcceptConnection)]


def test_a_right_claim_is_accepted() -> None:
    s = (
        Scenario(routing=True)
        .connect(claim=Claim.NEW)
        .connect(claim=Claim.RESUMED)
        .lose_connection()
        .connect(claim=Claim.RESUMED)
    )
    assert accepted(s) == [(1, False), (2, True), (3, True)]


def test_messages_that_wait_for_a_client_are_no_session_to_resume() -> None:
    """[MQTT-3.2.2-2]"""
    s = Scenario(routing=True).submit("a").connect(claim=Claim.NEW)
    assert s.sees() == ["CONNACK", "PUBLISH 1 a"]


@pytest.mark.parametrize("is_online", [True, False])
def test_a_session_that_a_gateway_did_not_know_keeps_everything(is_online: bool) -> None:
    """[MQTT-3.2.2-3] The device has read that there is no session, so the connection must not go on."""
    s = Scenario(routing=True).connect(version=5).subscribe("t", 1, version=1).submit("a", qos=2).submit("b")
    if not is_online:
        s.lose_connection()
    s.sees()
    s.connect(version=5, claim=Claim.NEW)
    assert s.sees() == (["CLOSE 0x8E"] if is_online else []) + ["CLOSE 0x89"]
    assert s.sent(CloseConnection)[-1].connection_id == 2
    assert s.session.connection is None
    assert s.outcomes == {}
    s.lose_connection(2)
    s.connect(version=5, claim=Claim.RESUMED)
    assert s.sees() == ["CONNACK present", "PUBLISH 1 a DUP", "PUBLISH 2 b DUP"]


def test_what_is_subscribed_behind_a_wrong_claim_does_not_count() -> None:
    """[MQTT-3.8.4-1] SUBACK waits for the session. Its list is above those that the gateway has written meanwhile, or will."""
    s = Scenario(routing=True).connect(claim=Claim.NEW).subscribe("kept", 1, version=1).lose_connection()
    s.connect(claim=Claim.NEW).subscribe("other", 1, version=1)
    (announced,) = s.sent(AnnounceSubscriptions)
    assert (announced.connection_id, announced.is_online) == (2, False)
    assert announced.version > 1_000_000
    assert [one.topic_filter for one in announced.subscriptions] == ["kept"]
    assert [one.topic_filter for one in s.session.outbound.subscriptions] == ["kept"]
    assert marks(s) == [MarkSession(connection_id=2)], "the next gateway knows the session"
    s.connect(claim=Claim.RESUMED).subscribe("other", 1, version=1)
    assert [one.topic_filter for one in s.session.outbound.subscriptions] == ["kept", "other"]


def test_without_routing_a_wrong_claim_writes_nothing() -> None:
    s = Scenario().connect().lose_connection().connect(claim=Claim.NEW)
    assert s.sees()[-1] == "CLOSE 0x89"
    assert (s.sent(AnnounceSubscriptions), marks(s)) == ([], [])


def test_a_session_that_is_gone_is_not_begun_by_one_who_resumes_it() -> None:
    """The device believes that its subscriptions are there. So it has to come again, and to read that they are not."""
    s = Scenario(routing=True).submit("a").connect(version=5, claim=Claim.RESUMED)
    assert s.sees() == ["CLOSE 0x89"]
    (closed,) = s.sent(CloseConnection)
    assert (closed.sequence, closed.reason_code, closed.newest_connection_id) == (1, ReasonCode.SERVER_BUSY, 0)
    assert s.sent(EndSessionMark) == [EndSessionMark(connection_id=1)]
    assert (s.session.established, s.outcomes) == (False, {})
    assert s.connect(version=5, claim=Claim.NEW).sees() == ["CONNACK", "PUBLISH 1 a"]


def test_a_session_that_ends_with_its_connection_is_not_resumed() -> None:
    """[MQTT-3.1.2-23]"""
    s = Scenario(routing=True).connect(version=5, expiry_s=0).submit("a").connect(version=5, claim=Claim.RESUMED)
    assert s.sees()[-2:] == ["CLOSE 0x8E", "CLOSE 0x89"]
    assert s.outcomes == {"a": Outcome.SESSION_ENDED}
    s = Scenario(routing=True).connect(version=5, expiry_s=0).connect(version=5, claim=Claim.NEW)
    assert s.sees()[-2:] == ["CLOSE 0x8E", "CONNACK"]


def test_the_will_of_a_refused_claim_is_not_published() -> None:
    s = Scenario(routing=True).connect().lose_connection().connect(claim=Claim.NEW, will=will()).lose_connection()
    assert s.session.pending_will is None


# --- marks ------------------------------------------------------------------------------------------------------------------


def marks(s: Scenario) -> list[MarkSession | EndSessionMark]:
    return [command for command in s.commands if isinstance(command, MarkSession | EndSessionMark)]


def test_a_session_is_marked_unless_its_gateway_knew_that_there_was_none() -> None:
    """The gateway's mark may stand before the end of an earlier session, and a bridge writes none."""
    s = Scenario(routing=True).connect().connect().lose_connection().connect(claim=Claim.RESUMED)
    assert marks(s) == [MarkSession(connection_id=1)]
    assert marks(Scenario(routing=True).connect(claim=Claim.NEW)) == []
    s = Scenario(routing=True).connect(claim=Claim.NEW).connect(clean_start=True)
    assert marks(s) == [MarkSession(connection_id=2)], "the mark of a session that follows at once does not end"


def test_the_mark_of_a_session_ends_with_it() -> None:
    s = Scenario(routing=True).connect(claim=Claim.NEW).connect(claim=Claim.RESUMED).disconnect().purge()
    assert marks(s) == [EndSessionMark(connection_id=2)]
    assert s.session.is_empty


def test_a_session_that_ends_with_its_connection_has_no_mark() -> None:
    assert marks(Scenario(routing=True).connect(expiry_s=0).disconnect()) == []


def test_a_kept_session_that_a_disconnect_ends_had_a_mark() -> None:
    s = Scenario(routing=True).connect(version=5, claim=Claim.NEW).disconnect(expiry_s=0)
    assert marks(s) == [EndSessionMark(connection_id=1)]


def test_a_clean_start_without_expiry_ends_the_mark_at_once() -> None:
    """Whoever comes after this connection finds no session, even while it is connected."""
    s = Scenario(routing=True).connect(claim=Claim.NEW).connect(clean_start=True, expiry_s=0, version=5)
    assert marks(s) == [EndSessionMark(connection_id=2)]


def test_without_routing_nothing_is_marked() -> None:
    assert marks(Scenario().connect().connect(claim=Claim.NEW).disconnect().purge()) == []
