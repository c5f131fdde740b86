"""A backend leaves a transaction open: it counts as backlog, and `inflight status` names it."""

from contextlib import closing

import confluent_kafka
import pytest

from inflight.status.findings import findings
from inflight.status.probes import probe_kafka
from streaming.config.settings import Settings
from streaming.engine.watching.consumer_lag import ConsumerLag
from streaming.topics import ensure_topics
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until
from tests.unit.inflight.status.test_findings import kafka as measured


@pytest.mark.promise("open-transaction")
def test_an_open_transaction_is_backlog_and_is_named(kafka: SharedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.status.findings._LONG_TRANSACTION_S", 0.0)
    prefix = "open-transaction"
    settings = Settings(kafka={"bootstrap_servers": kafka.bootstrap_servers}, topics={"prefix": prefix})
    ensure_topics(settings)
    topic = settings.topics.messages
    backend = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"{prefix}-backend"})
    backend.init_transactions(60)
    backend.begin_transaction()
    backend.produce(topic, b"open", b"c", partition=1)
    backend.flush(60)
    other = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for _ in range(5):
        other.produce(topic, b"behind it", b"c", partition=1)
    other.flush(60)

    (held,) = probe_kafka(settings).held
    assert (held.topic, held.partition, held.offset, held.records) == (topic, 1, 0, 6)
    assert held.writer == f"transactional.id {prefix}-backend"
    assert held.open_s is not None
    assert 0 <= held.open_s < 120
    found = [finding.what for finding in findings(measured(held=(held,)))]
    assert found[0].startswith(f"an open transaction of transactional.id {prefix}-backend has held back {topic}-1 for ")

    seen: list[tuple[dict[str, int], dict[str, int]]] = []
    read = {topic: dict.fromkeys(range(4), 0)}
    lag = ConsumerLag(settings, {topic: 4}, read, on_lag=lambda waiting, held: seen.append((dict(waiting), dict(held))))
    client = lag._connect()
    with closing(client[0]), closing(client[1]):
        lag._poll(client)
    assert seen == [({topic: 6}, {topic: 6})]

    backend.abort_transaction(60)
    wait_until(lambda: probe_kafka(settings).held == (), "nothing is held back")
