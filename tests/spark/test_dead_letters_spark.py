"""Dead letters through the real query: from queue to queue by way of Kafka, and into a topic at the end. The rules themselves are
tested without Spark (tests/scenarios/test_dead_letters.py)."""

import json
from pathlib import Path

from pyspark.sql import SparkSession

from state.dead_letters.exchanges import Binding, Exchange, Exchanges, ExchangeType, parse_destination
from state.dead_letters.policy import Policy
from state.records.settings import Topics
from streaming.engine.operator.settings import PipelineSettings
from tests.spark.conftest import Pipeline
from tests.support.shared import SharedKafka

TTL_MS = 400


def test_a_message_goes_through_two_queues_with_its_whole_history(
    spark: SparkSession, kafka: SharedKafka, topics: Topics, tmp_path: Path
) -> None:
    retry = Exchange(
        name="retry", type=ExchangeType.FANOUT, bindings=(Binding(destination=parse_destination("client:delay/{client}")),)
    )
    settings = PipelineSettings(
        commands_partitions=2,
        topics=topics,
        policies=(
            Policy(name="lamps", clients="lamp-*", dead_letter_exchange="retry", message_ttl_ms=TTL_MS),
            Policy(name="delay", clients="delay/*", message_ttl_ms=TTL_MS),
        ),
        exchanges=Exchanges(declared=(retry,)),
    )
    pipeline = Pipeline(spark, kafka.bootstrap_servers, settings, tmp_path / "checkpoint")
    try:
        pipeline.start()
        for number in range(20):
            key = b"m%d" % number
            pipeline.send_message(f"lamp-{number}", key, ("message-id", key), ("CC", b'["c"]'), ("expiration", b"60000"))
        letters = pipeline.read(topics.dead_letters, 20)
        assert sorted(letter.value or b"" for letter in letters) == sorted(b"m%d" % number for number in range(20))
        for letter in letters:
            headers = dict(letter.headers)
            name = (letter.value or b"").decode()
            newest, oldest = json.loads(headers["x-death"])
            assert (newest["queue"], newest["reason"], newest["exchange"]) == (f"delay/lamp-{name[1:]}", "expired", "retry")
            assert (oldest["queue"], oldest["routing-keys"]) == (f"lamp-{name[1:]}", ["t", "c"])
            assert oldest["original-expiration"] == "60000"
            assert "original-expiration" not in newest
            assert newest["time"] - oldest["time"] >= TTL_MS
            assert headers["message-id"] == name.encode()
        receipts = [json.loads(record.value or b"") for record in pipeline.read(topics.receipts, 40)]
        assert sorted((receipt["final"], receipt["deaths"]) for receipt in receipts) == [(False, 1)] * 20 + [(True, 2)] * 20
    finally:
        pipeline.close()
