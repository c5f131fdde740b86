"""The console as a browser's requests see it, with measurements instead of a running system."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from inflight.console.app import console_app
from inflight.console.history import Letters, LettersFilter, MessageTrace, PlannedReplay, ReplayPlan, TopicView
from inflight.console.live import Live
from inflight.console.presence_events import PresenceEvents
from inflight.console.worker import Progress, QueryWorker
from inflight.presence import ClientPresence, PresenceStatus
from inflight.status.measurements import ClientQueue, KafkaStatus, Measurements, SessionTotals
from state.errors import InflightError
from state.model import QoS, Subscription
from streaming.config.settings import Settings, load_settings
from streaming.history.clients import HeldMessage, HeldSession, StoredClient
from streaming.history.recent import LedgerStep, RecentSteps
from streaming.history.subscriptions import RetainedMessage, Subscriber
from streaming.history.trace import TraceStep
from tests.unit.inflight.status.test_findings import SESSIONS, WELL

SCRIPT = "<script>alert(1)</script>"
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;"
ROW = {
    "client_id": "pump-7",
    "connected": True,
    "inflight": 1,
    "queued": 1,
    "queued_bytes": 9,
    "oldest_unacked": "2026-11-21T10:00:00.123Z",
    "next_deadline": None,
    "state_bytes": 300,
    "partition_id": 0,
    "quarantined": False,
}


class FakeObserver:
    """An observer with fixed measurements."""

    def __init__(self, seen: Measurements = WELL) -> None:
        self.seen = seen
        self.looks = 0

    def probe_kafka(self) -> KafkaStatus:
        return self.seen.kafka

    def measure(self, kafka: KafkaStatus) -> Measurements:
        self.looks += 1
        return self.seen


def settings_of(data_dir: Path, *overrides: str) -> Settings:
    return load_settings(None, [f"engine.data_dir={data_dir}", *overrides])


def browser(settings: Settings, live: Live) -> TestClient:
    """Returns a client for pages that ask the worker nothing."""
    return TestClient(
        console_app(settings, live, QueryWorker(), FakeHistory()), base_url="http://127.0.0.1:8000", follow_redirects=False
    )


class FakeHistory:
    """A history with fixed answers, which contain `id_` wherever devices or backends choose a text."""

    def __init__(self, id_: str = "pump-7") -> None:
        self.id = id_
        self.asked: list[tuple[object, ...]] = []
        self.problem: InflightError | None = None
        self.sent: list[ReplayPlan] = []
        self.planned = 2

    def _note(self, *question: object) -> None:
        self.asked.append(question)
        if self.problem is not None:
            raise self.problem

    def sessions(self) -> SessionTotals:
        self._note("sessions")
        worst = ClientQueue(client_id=self.id, connected=True, inflight=32, queued=1_234, queued_bytes=56_789, oldest_s=150.0)
        return replace(SESSIONS, sessions=100_000, worst=(worst,))

    def clients(self, prefix: str) -> Sequence[dict[str, Any]]:
        self._note("clients", prefix)
        return [ROW | {"client_id": self.id}]

    def client(self, client_id: str) -> StoredClient:
        self._note("client", client_id)
        message = HeldMessage(
            message_id=self.id, topic=self.id, qos=2, priority=0, attempts=3, size_bytes=9, payload=self.id, accepted_ms=1,
            first_sent_ms=1_700_000_000_000, expires_at_ms=None, fast_path=False,
        )  # fmt: skip
        session = HeldSession(
            has_connected=True,
            lease_id="lease",
            protocol_version=5,
            send_quota=32,
            offline_since_ms=None,
            session_expiry_interval_s=60,
            awaiting_rel=0,
            subscription_count=1,
            subscriptions=(Subscription(topic_filter=self.id, qos=QoS.AT_LEAST_ONCE),),
            window=(replace(message, packet_id=77, phase="AWAITING_PUBREC"),),
            queue=(message,),
        )
        return StoredClient(summary=ROW | {"client_id": client_id, "queued": 700}, session=session)

    def steps(self, client_id: str, on_progress: Progress) -> RecentSteps:
        self._note("steps", client_id)
        on_progress(5, 10)
        return RecentSteps(steps=(LedgerStep(message_id=self.id, step=self._step()),), source="ledger: all of it")

    def trace(self, message_id: str, client_id: str, on_progress: Progress) -> MessageTrace:
        self._note("life", message_id, client_id)
        sources = "from the topics of Kafka", "  inflight.ledger: 12 records"
        return MessageTrace(steps=(self._step(),), sources=sources, fates=(f"waits in {self.id}'s queue",))

    def newest(self, on_progress: Progress) -> RecentSteps:
        self._note("newest")
        steps = (LedgerStep(message_id=self.id, step=self._step()),) if self.planned else ()
        return RecentSteps(steps=steps, source="ledger: the newest records")

    def presence(self, prefix: str, on_progress: Progress) -> PresenceEvents:
        self._note("presence", prefix)
        change = ClientPresence(client_id=self.id, status=PresenceStatus.OFFLINE, protocol_version=3, reason=self.id)
        online = ClientPresence(client_id=self.id, status=PresenceStatus.ONLINE, protocol_version=3, gateway=self.id)
        return PresenceEvents(changes=(change, online), source="presence: the newest records")

    def topic(self, topic: str, on_progress: Progress) -> TopicView:
        self._note("topic", topic)
        one = Subscriber(
            client_id=self.id, topic_filter=self.id, qos=1, group=self.id, identifier=7, no_local=False, retain_as_published=False
        )
        kept = RetainedMessage(
            topic=self.id, publisher=self.id, qos=2, size_bytes=3, payload=self.id, accepted_ms=1, expires_at_ms=None
        )
        return TopicView(subscribers=(one,), count=1_234, retained=(kept,))

    def letters(self, chosen: LettersFilter) -> Letters:
        self._note("letters", chosen)
        return Letters(letters=(self._letter(),), sources=("from the topics of Kafka",))

    def letter(self, dead_letter_id: str, client_id: str) -> dict[str, Any]:
        self._note("letter", dead_letter_id, client_id)
        return self._letter() | {"headers": [{"key": self.id, "value": self.id}]}

    def plan(self, chosen: LettersFilter) -> ReplayPlan:
        self._note("plan", chosen)
        planned = tuple(
            PlannedReplay(message_id=f"{self.id}{n}", client_id=self.id, dead_letter_id=f"d{n}") for n in range(self.planned)
        )
        skipped = {"it has been replayed before": 3}
        return ReplayPlan(chosen=chosen, matched=5, is_cut=False, planned=planned, sources=("from Kafka",), skipped=skipped)

    def replay(self, plan: ReplayPlan, on_progress: Progress, *, by: str) -> int:
        self._note("replay", by)
        self.sent.append(plan)
        return len(plan.planned)

    def _step(self) -> TraceStep:
        step = TraceStep(time_ms=1_795_255_200_000, client_id=self.id, step="resent", attempt=2, packet_id=77, reason_code=0x87)
        return replace(step, detail=self.id)

    def _letter(self) -> dict[str, Any]:
        texts = dict.fromkeys(("client_id", "message_id", "topic", "payload", "detail"), self.id)
        return {
            **texts,
            "time": "2026-11-21T10:00:00.123Z",
            "dead_letter_id": "0123456789abcdef",
            "reason": "expired",
            "deaths": 1,
            "replays": 0,
            "payload_text": None,
        }


class ConsoleDriver:
    """A console whose worker works when `work` is called."""

    def __init__(self, data_dir: Path, history: FakeHistory, *overrides: str) -> None:
        self.worker = QueryWorker()
        self.history = history
        self.browser = TestClient(
            console_app(settings_of(data_dir, *overrides), Live(FakeObserver()), self.worker, history),
            base_url="http://127.0.0.1:8000",
            follow_redirects=False,
        )

    def get(self, path: str, **query: str) -> str:
        """The page, once its answers are there."""
        self.browser.get(path, params=query)
        self.work()
        return self.browser.get(path, params=query).text

    def work(self) -> None:
        self.worker.run_pending()

    def token(self) -> str:
        found = re.search(r'name="token" value="([^"]+)"', self.browser.get("/dead-letters").text)
        assert found is not None
        return found[1]


def unnamed_cells(text: str) -> list[list[str]]:
    """Returns for each table with a head the cells that do not name their column. A cell over all columns needs no name."""
    found = []
    for table in re.findall(r"<table>.*?</table>", text, re.DOTALL):
        columns = re.findall(r"<th[ >][^<]*", table)
        names = [column.partition(">")[2] for column in columns]
        rows = [re.findall(r"<td[^>]*>", row) for row in re.findall(r"<tr>(<td.*?)</tr>", table, re.DOTALL)]
        cells = [(cell, name) for row in rows if "colspan" not in row[0] for cell, name in zip(row, names, strict=True)]
        found.append([cell for cell, name in cells if f'data-label="{name}"' not in cell])
    return found
