"""protocol.md, section 1: a gateway says what its CONNACK has said about the session, and the session verifies it."""

import pytest

from state.commands import (
    AcceptConnection,
    AnnounceSubscriptions,
    CloseConnection,
    EndSessionMark,
    ForwardPublication,
    MarkSession,
    RecordTransition,
    Transition,
)
from state.events import Claim, ExpiredSession
from state.model import Outcome, ReasonCode
from tests.scenarios.scenario import START_MS, Scenario, will


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
@pytest.mark.promise("claims")
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


# --- sessions that have expired ---------------------------------------------------------------------------------------------


def left(connection_id: int, s: Scenario, interval_s: int = 5) -> ExpiredSession:
    """Says that a connection was over when its scenario began, and that it is claimed when the interval has passed."""
    claimed_ms = START_MS + 1_000 * interval_s
    return ExpiredSession(connection_id=connection_id, left_ms=START_MS, interval_s=interval_s, claimed_ms=claimed_ms)


def is_ended(s: Scenario) -> bool:
    return any(isinstance(one, RecordTransition) and one.transition is Transition.SESSION_ENDED for one in s.last)


def test_a_session_that_has_expired_ends_with_the_claim() -> None:
    """[MQTT-3.1.2-23] [MQTT-4.1.0-2] The engine is behind: it reads the end of the connection and the next one at once."""
    s = Scenario(routing=True).connect(version=5, expiry_s=5, will=will(delay_s=60)).subscribe("old", 1, version=1)
    s.submit("a", qos=2).submit("b").lose_connection()
    s.sees()
    s.connect(version=5, expiry_s=5, claim=Claim.NEW, expired=left(1, s))
    assert (is_ended(s), s.session.started_by) == (True, 2)
    assert [one.will for one in s.sent(ForwardPublication)] == [True]
    assert list(s.session.outbound.subscriptions) == []
    s.after(0.001)
    assert (s.sees(), s.outcomes) == (["CONNACK"], {"a": Outcome.SESSION_ENDED, "b": Outcome.SESSION_ENDED})
    assert marks(s) == [MarkSession(connection_id=1)], "the mark of the gateway stays"


def test_a_session_that_has_ended_before_a_claim_of_expiry_is_no_matter() -> None:
    s = Scenario(routing=True).connect(version=5, expiry_s=5).disconnect().after(6)
    s.connect(version=5, claim=Claim.NEW, expired=left(1, s))
    assert (accepted(s), is_ended(s)) == ([(1, False), (2, False)], False)


def test_without_an_interval_no_session_is_left_to_be_ended() -> None:
    s = Scenario(routing=True).connect(version=5, expiry_s=0).disconnect()
    assert s.connect(version=5, claim=Claim.NEW, expired=left(1, s, interval_s=0)).sees() == ["CONNACK", "CONNACK"]


def test_a_connection_without_connack_does_not_keep_an_expired_session() -> None:
    """[MQTT-3.2.2-3] Its gateway was killed before it marked the session. The device knows of the connection before."""
    s = Scenario(routing=True).connect(version=5, expiry_s=5).submit("a", qos=2).disconnect()
    s.connect(version=5, expiry_s=3_600, claim=Claim.RESUMED)
    s.sees()
    s.connect(version=5, claim=Claim.NEW, expired=left(1, s))
    assert (s.sees(), s.outcomes) == (["CLOSE 0x8E", "CONNACK"], {"a": Outcome.SESSION_ENDED})


@pytest.mark.parametrize(
    ("connection_id", "interval_s"),
    [
        pytest.param(1, 5, id="another session"),
        pytest.param(3, 5, id="an unknown connection"),
        pytest.param(2, 5, id="a longer interval"),
        pytest.param(2, 0, id="ended with its connection"),
    ],
)
def test_a_claim_of_expiry_that_is_wrong_ends_nothing(connection_id: int, interval_s: int) -> None:
    s = Scenario(routing=True).connect(version=5).connect(version=5, clean_start=True).submit("a", qos=2).disconnect()
    s.sees()
    s.connect(version=5, connection_id=4, claim=Claim.NEW, expired=left(connection_id, s, interval_s))
    assert (s.sees(), s.outcomes, is_ended(s)) == (["CLOSE 0x89"], {}, False)
    assert s.connect(version=5, claim=Claim.RESUMED).sees() == ["CONNACK present", "PUBLISH 1 a DUP"]


def test_a_session_whose_connection_is_there_has_not_expired() -> None:
    s = Scenario(routing=True).connect(version=5, expiry_s=5).submit("a")
    s.sees()
    s.connect(version=5, claim=Claim.NEW, expired=left(1, s))
    assert (s.sees(), s.outcomes) == (["CLOSE 0x8E", "CLOSE 0x89"], {})


# --- marks ------------------------------------------------------------------------------------------------------------------


def marks(s: Scenario) -> list[MarkSession | EndSessionMark]:
    return [command for command in s.commands if isinstance(command, MarkSession | EndSessionMark)]


def test_a_session_is_marked_unless_its_gateway_knew_that_there_was_none() -> None:
    """The gateway's mark may stand before the end of an earlier session, and a bridge writes none."""
    s = Scenario(routing=True).connect().lose_connection().connect(claim=Claim.RESUMED)
    assert marks(s) == [MarkSession(connection_id=1)]
    assert marks(Scenario(routing=True).connect(claim=Claim.NEW)) == []
    s = Scenario(routing=True).connect(claim=Claim.NEW).connect(clean_start=True)
    assert marks(s) == [MarkSession(connection_id=2)], "the mark of a session that follows at once does not end"


def test_a_session_that_is_resumed_without_a_claim_marks_itself() -> None:
    """The mark of the connection before may say when the session expires, and a bridge takes nothing back."""
    s = Scenario(routing=True).connect(claim=Claim.NEW).disconnect().connect()
    assert marks(s) == [MarkSession(connection_id=2)]
    assert marks(Scenario(routing=True).connect(claim=Claim.NEW).connect(expiry_s=0)) == []


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
