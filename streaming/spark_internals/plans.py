"""Finds what a query uses, in its analysed plan, before it is executed.

Tried with PySpark 4.2.0. It uses `queryExecution().analyzed()` and the trees of Catalyst: `children`, `expressions`, and `plan`
of a subquery. A temporary view is a node `View`, and what it reads is below it. Another version without them raises Py4JError.
"""

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame

_LOGICAL: Final = "org.apache.spark.sql.catalyst.plans.logical."
_EXPRESSIONS: Final = ("org.apache.spark.sql.catalyst.expressions.", "org.apache.spark.sql.catalyst.analysis.")
_REFLECTION: Final = "CallMethodViaReflection"
_SUBQUERIES: Final = frozenset(
    ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery", "FunctionTableSubqueryArgumentExpression")
)
"""Expressions with a plan of their own."""
_VIEW: Final = f"{_LOGICAL}View"
_WITHOUT_SOURCE: Final = frozenset(
    f"{_LOGICAL}{name}" for name in ("OneRowRelation", "LocalRelation", "Range", "CTERelationRef", "UnionLoopRef")
)
"""Leaves that read nothing."""


def foreign_parts(query: DataFrame) -> list[str]:
    """Returns what a query reads besides temporary views, and what calls code that is not Spark's; empty if nothing."""
    return list(_of_plan(_analyzed(query)))


def foreign_parts_of_condition(rows: DataFrame) -> list[str]:
    """Returns the same for the condition of `rows.where(condition)`."""
    return [part for expression in _elements(_analyzed(rows).expressions()) for part in _of_expression(expression)]


def _analyzed(query: DataFrame) -> Any:
    return query._jdf.queryExecution().analyzed()


def _of_plan(plan: Any) -> Iterator[str]:
    kind = _class(plan)
    if kind == _VIEW:
        return
    children = _elements(plan.children())
    if not children and kind not in _WITHOUT_SOURCE:
        yield _short(kind)
    for expression in _elements(plan.expressions()):
        yield from _of_expression(expression)
    for child in children:
        yield from _of_plan(child)


def _of_expression(expression: Any) -> Iterator[str]:
    kind = _class(expression)
    name = _short(kind)
    is_unknown_subquery = "Subquery" in name and name not in (*_SUBQUERIES, "InSubquery")
    if not kind.startswith(_EXPRESSIONS) or name == _REFLECTION or is_unknown_subquery:
        yield name
    if name in _SUBQUERIES:
        yield from _of_plan(expression.plan())
    for child in _elements(expression.children()):
        yield from _of_expression(child)


def _elements(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]


def _class(node: Any) -> str:
    name: str = node.getClass().getName()
    return name


def _short(kind: str) -> str:
    return kind.rpartition(".")[2].rstrip("$")
