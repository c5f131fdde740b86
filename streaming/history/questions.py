"""Runs SQL of people who may ask about the tables, but not read this machine's files or call Java with the operator's rights.

A query is analysed first, which executes nothing, and refused if it uses anything but the views and Spark's own functions.
"""

import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from streaming.history.errors import BadQuestion
from streaming.spark_internals.plans import foreign_parts, foreign_parts_of_condition

_QUERIES: Final = ("select", "with", "values", "table", "from", "(")
_ABOUT: Final = ("describe", "desc", "show")
_EXPLAIN: Final = "explain"
_EXPLAINED: Final = re.compile(r"explain\s+(?:(?:extended|codegen|cost|formatted)\s+)?", re.IGNORECASE)
_PATH: Final = re.compile(r"[/:\\]")


def checked_query(spark: SparkSession, question: str) -> DataFrame:
    """Returns the answer to a query over the temporary views. Raises BadQuestion, and PySparkException for wrong SQL."""
    text = question.strip().rstrip(";").strip()
    word = text[:1] if text.startswith("(") else text.split(maxsplit=1)[0].lower() if text else ""
    # A file is no table. Spark would read the beginning of one for its columns even before the check.
    spark.conf.set("spark.sql.runSQLOnFiles", "false")
    if word in _QUERIES:
        # Any text is a query, and cannot write, as a subquery.
        found = spark.sql(f"SELECT * FROM ({text})")  # noqa: S608  # nosec B608
        _refuse(foreign_parts(found))
        return found
    if word == _EXPLAIN:
        checked_query(spark, _EXPLAINED.sub("", text, count=1))
    elif word not in _ABOUT:
        raise BadQuestion(f"{word or 'nothing'!r} is no question: ask with {', '.join((*_QUERIES[:4], *_ABOUT, _EXPLAIN))}")
    elif _PATH.search(text):
        raise BadQuestion(f"{text!r} names a path: ask about one of the tables by its name")
    return spark.sql(text)


def checked_condition(rows: DataFrame, condition: str) -> DataFrame:
    """Returns the rows for which a condition in SQL holds. Raises as `checked_query`."""
    found = rows.where(condition)
    _refuse(foreign_parts_of_condition(found))
    return found


def _refuse(parts: Sequence[str]) -> None:
    if parts:
        raise BadQuestion(
            f"the question uses {', '.join(sorted(set(parts)))}: read only the tables, and call only functions of Spark's SQL"
        )
