"""sinks.mqtt.known_tables"""

from sinks.mqtt.known_tables import NO_TABLES, RoutingView
from sinks.mqtt.settings import Limit
from sinks.routing.retained_table import RetainedEntry, RetainedTable
from sinks.routing.session_table import SessionTable
from sinks.routing.settings import RoutingSettings
from sinks.routing.subscription_table import SubscriptionTable
from state.events import ExpiredSession
from state.records.session_marks import SessionMark
from state.records.subscriptions import SubscriptionList


class Tables:
    def __init__(self) -> None:
        self.subscriptions = SubscriptionTable()
        self.retained: RetainedTable[bytes] = RetainedTable()
        self.sessions, self.marks_all_sessions = SessionTable(), True


def view(tables: Tables, *, is_complete: bool = True, now_ms: int = 0, **limits: int) -> RoutingView:
    return RoutingView(RoutingSettings(**limits), tables, lambda: is_complete, lambda: now_ms)


def test_a_session_is_kept_for_what_is_left_of_its_time() -> None:
    tables = Tables()
    tables.sessions.mark(b"c", SessionMark(5, 10_000, 7))
    assert [view(tables, now_ms=now_ms).kept_ms("c") for now_ms in (9_000, 11_000)] == [1_000, 0]
    assert view(tables).kept_ms("other") is None
    assert view(tables, is_complete=False).kept_ms("other") == 0, "it is not known yet"
    assert NO_TABLES.kept_ms("other") == 0


def test_a_session_expires_when_its_time_has_passed_on_all_clocks() -> None:
    tables = Tables()
    tables.sessions.mark(b"c", SessionMark(5, 10_000, 7))
    expired = ExpiredSession(connection_id=5, left_ms=3_000, interval_s=7)
    assert [view(tables, now_ms=now_ms).expired("c") for now_ms in (10_499, 10_500)] == [None, expired]
    assert view(tables).expired("other") is None
    assert NO_TABLES.expired("other") is None


def test_wills_are_settled_if_the_mark_says_so_or_none_is_there() -> None:
    tables = Tables()
    for client, is_settled in ((b"settled", True), (b"open", False)):
        tables.sessions.mark(client, SessionMark(5, 10_000, 7, is_settled))
    assert [view(tables).wills_settled(client) for client in ("settled", "open", "other")] == [True, False, True]
    assert not view(tables, is_complete=False).wills_settled("other"), "it is not known yet"
    assert not NO_TABLES.wills_settled("other")


def test_a_client_has_no_list_only_if_the_table_is_complete() -> None:
    tables = Tables()
    tables.subscriptions.replace("known", SubscriptionList(connection_id=1, version=0))
    assert view(tables).has_list("known")
    assert not view(tables).has_list("other")
    assert view(tables, is_complete=False).has_list("other")
    assert NO_TABLES.has_list("other")


def test_a_list_is_the_highest_if_the_table_has_no_higher_one() -> None:
    tables = Tables()
    tables.subscriptions.replace("c", SubscriptionList(connection_id=7, version=3))
    highest = [list_id for list_id in ((7, 2), (7, 3), (7, 4), (6, 9), (8, 0)) if view(tables).is_highest("c", list_id)]
    assert highest == [(7, 3), (7, 4), (8, 0)]
    assert not view(tables).is_highest("of nobody", (9, 9))
    tables.subscriptions.replace("c", SubscriptionList(connection_id=7, version=3, is_online=False))
    assert not view(tables).is_highest("c", (7, 3)), "a gateway that repeats its list would read a lower one again"


def test_one_more_retained_message_may_exceed_a_limit() -> None:
    tables = Tables()
    tables.retained.put("a", RetainedEntry(b"", 100))
    by_number = view(tables, max_retained_messages=1)
    assert by_number.retained_limit("a", 10_000) is None, "it replaces the one that is there"
    assert by_number.retained_limit("b", 0) is Limit.RETAINED_MESSAGES
    by_size = view(tables, max_retained_bytes=200)
    assert by_size.retained_limit("b", 99) is None
    assert by_size.retained_limit("b", 100) is Limit.RETAINED_BYTES
    assert by_size.retained_limit("a", 199) is None
    assert by_size.retained_limit("a", 200) is Limit.RETAINED_BYTES
    assert NO_TABLES.retained_limit("b", 1 << 40) is None
