"""SQL of people reads the tables and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from streaming.history.errors import BadQuestion
from streaming.history.questions import checked_condition, checked_query


@pytest.fixture(scope="module")
def ledger(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataFrame]:
    """The view `ledger`, which reads a file, as the tables of the archive do."""
    table = str(tmp_path_factory.mktemp("questions") / "ledger")
    spark.range(3).selectExpr("id", "concat('c', id) AS client_id").write.parquet(table)
    rows = spark.read.parquet(table)
    rows.createOrReplaceTempView("ledger")
    yield rows
    spark.catalog.dropTempView("ledger")
    spark.conf.unset("spark.sql.runSQLOnFiles")


@pytest.mark.parametrize(
    "question",
    [
        "SELECT client_id, count(*) AS n FROM ledger GROUP BY ALL ORDER BY n DESC",
        "WITH a AS (SELECT * FROM ledger) SELECT * FROM a WHERE id IN (SELECT max(id) FROM ledger)",
        "SELECT client_id, (SELECT count(*) FROM ledger) AS n FROM ledger l WHERE EXISTS (SELECT 1 FROM ledger WHERE id = l.id)",
        "SELECT explode(sequence(1, 3)), parse_url('http://a/b', 'HOST'), is_valid_utf8('x')",
        "SELECT client_id, row_number() OVER (PARTITION BY client_id ORDER BY l.id) FROM ledger l, range(2)",
        "VALUES (1), (2)",
        "FROM ledger SELECT id",
        "TABLE ledger",
        "(SELECT 1) UNION (SELECT 2);",
        "DESCRIBE ledger",
        "SHOW VIEWS",
        "EXPLAIN FORMATTED SELECT * FROM ledger",
        "SELECT to_json(struct(*)), regexp_extract(client_id, 'c(.)'), transform(array(id), x -> x / 2) FROM ledger",
    ],
)
def test_a_question_about_the_tables_is_answered(spark: SparkSession, ledger: DataFrame, question: str) -> None:
    assert checked_query(spark, question).collect()


@pytest.mark.parametrize(
    "question",
    [
        "SELECT * FROM text.`{file}`",
        "SELECT * FROM csv.`{file}`",
        "SELECT * FROM ledger WHERE client_id IN (SELECT value FROM text.`{file}`)",
        "SELECT * FROM delta.`{folder}`",
        "DESCRIBE csv.`{file}`",
        "SELECT reflect('java.lang.System', 'getProperty', 'user.name')",
        "SELECT java_method('java.lang.System', 'getProperty', 'user.name')",
        "SELECT try_reflect('java.lang.System', 'getProperty', 'user.name')",
        "SELECT id FROM ledger ORDER BY reflect('java.lang.System', 'nanoTime')",
        "SELECT (SELECT max(reflect('java.lang.System', 'nanoTime')) FROM ledger)",
        "WITH a AS (SELECT reflect('java.lang.System', 'nanoTime') AS x) SELECT 1 FROM a",
        "EXPLAIN SELECT reflect('java.lang.System', 'nanoTime')",
        "EXPLAIN EXTENDED SELECT * FROM text.`{file}`",
        "SET spark.sql.runSQLOnFiles=true",
        "CREATE TEMP VIEW x AS SELECT 1",
        "ADD JAR '{file}'",
        "",
    ],
)
def test_a_question_about_anything_else_is_refused(spark: SparkSession, ledger: DataFrame, tmp_path: Path, question: str) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("user,password\nroot,hunter2\n")
    with pytest.raises((BadQuestion, PySparkException)) as refused:
        checked_query(spark, question.format(file=file, folder=tmp_path)).collect()
    assert "hunter2" not in str(refused.value)


def test_a_condition_follows_the_same_rules(ledger: DataFrame, tmp_path: Path) -> None:
    assert checked_condition(ledger, "client_id LIKE 'c%' AND id > 0").count() == 2
    subquery = "id IN (SELECT 1 FROM range(1) WHERE java_method('a', 'b') = '')"
    for condition in "reflect('java.lang.System', 'nanoTime') != ''", subquery:
        with pytest.raises((BadQuestion, PySparkException)):
            checked_condition(ledger, condition)
