"""Logs in by every method of [kafka]: Spark's source and sink, and the clients that measure the backlog."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from inflight.local.jars import Jars
from streaming.config.settings import Settings
from streaming.engine.intake.waiting_records import WaitingRecords
from tests.integration.kafka.security.logins import LOGINS, TOPIC, Secured, broker_for_logins

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, jars: Jars) -> Iterator[Secured]:
    with broker_for_logins(tmp_path_factory.mktemp("secure"), jars) as both:
        yield both


@pytest.mark.parametrize("login", LOGINS)
def test_spark_logs_in(spark: SparkSession, secured: Secured, tmp_path: Path, login: str) -> None:
    options = Settings(kafka=LOGINS[login](*secured, tmp_path)).kafka.spark_options()
    told = spark.createDataFrame([(login,)], "value string")
    told.write.format("kafka").options(**options, topic=TOPIC).save()
    found = spark.read.format("kafka").options(**options, subscribe=TOPIC).load().selectExpr("cast(value as string)").collect()
    assert (login,) in found


@pytest.mark.parametrize("login", LOGINS)
def test_the_reader_of_waiting_records_logs_in(secured: Secured, tmp_path: Path, login: str) -> None:
    kafka = Settings(kafka=LOGINS[login](*secured, tmp_path)).kafka
    with closing(WaitingRecords(kafka.client_options(), max_bytes=1 << 20)) as records:
        end = records.ends(TOPIC, [0])[0]
        assert end, "Spark has written some"
        assert records.measure(TOPIC, 0, 0)[-1].end == end
        assert records.ends(TOPIC, [0]) == {0: end}
