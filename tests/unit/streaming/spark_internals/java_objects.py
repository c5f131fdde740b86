"""Fakes of the objects of Spark's JVM that PySpark shows."""

from types import SimpleNamespace
from typing import Any


class Getters:
    """A Java object: every value is behind a method."""

    def __init__(self, **values: object) -> None:
        for name, value in values.items():
            setattr(self, name, lambda value=value: value)


PROGRESS = Getters(
    batchId=8,
    numInputRows=7,
    stateOperators=[],
    sources=[
        Getters(numInputRows=4, endOffset='{"a.messages":{"0":5,"1":9}}', latestOffset='{"a.messages":{"0":5,"1":12}}'),
        Getters(numInputRows=3, endOffset='{"a.events":{"0":3}}', latestOffset=None),
    ],
)
QUERY: Any = SimpleNamespace(_jsq=Getters(lastProgress=PROGRESS))
