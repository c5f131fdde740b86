"""Every way to log in, by the one description in [kafka]: Spark's source and sink against a real broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from inflight.local.jars import Jars
from streaming.config.settings import Settings
from tests.integration.kafka.security.logins import LOGINS, TOPIC, Secured, broker_for_logins

pytestmark = [pytest.mark.spark, pytest.mark.faults]


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
