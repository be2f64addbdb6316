# pyright: basic
"""SQL that reads a store and nothing else: the check that `headrace query --sql` makes before Spark runs a statement.

Spark's parser makes a tree of the statement, without running it. Every node of the tree must be one of a query, and
every table must be the store, or a name that the query itself defines with WITH. So a statement cannot write, read
files (`parquet.`/path``), change settings, load code, run programs (TRANSFORM) or call Java (`reflect`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from pyspark.sql import SparkSession

from headrace.errors import UnsuitableQueryError

# The nodes that Spark's parser makes of a query.
QUERY_NODES = frozenset((
    "Aggregate", "Deduplicate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "Intersect", "Join",
    "LateralJoin", "LocalLimit", "LocalRelation", "Offset", "OneRowRelation", "Pivot", "PipeOperator", "Project",
    "Range", "Sample", "Sort", "SubqueryAlias", "Tail", "Union", "UnresolvedHaving", "UnresolvedHint",
    "UnresolvedInlineTable", "UnresolvedRelation", "UnresolvedSubqueryColumnAliases", "UnresolvedTableValuedFunction",
    "UnresolvedTVFAliases", "UnresolvedWith", "UnresolvedOrdinal", "Unpivot", "Window", "WithWindowDefinition",
))  # fmt: skip
TABLE_FUNCTIONS = frozenset((
    "explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode", "posexplode_outer", "range",
    "stack", "variant_explode", "variant_explode_outer",
))  # fmt: skip
# Functions that call Java, or read a file that an argument names.
FORBIDDEN_FUNCTIONS = frozenset(("reflect", "try_reflect", "java_method", "from_protobuf", "to_protobuf"))


def check_sql(spark: SparkSession, sql: str, tables: Collection[str]) -> None:
    """Reject a statement that is not a query of these tables. Spark's `ParseException` passes through."""
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no parser of its own
    session: Any = spark._jsparkSession  # noqa: SLF001
    plan = session.sessionState().sqlParser().parsePlan(sql)
    plans, expressions = list[Any](), list[Any]()
    subquery = jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.expressions.PlanExpression")
    for kind, node in _walk(plan, subquery):
        (plans if kind == "plan" else expressions).append(node)
    for node in plans:
        if _class_of(node) not in QUERY_NODES:
            raise _rejected(f"{_class_of(node)} is not part of a query")
    known = {*tables, *(alias for node in plans if _class_of(node) == "UnresolvedWith" for alias in _aliases(node))}
    for node in plans:
        match _class_of(node):
            case "UnresolvedRelation":
                _check_table(_strings(node.multipartIdentifier()), {name.lower() for name in known})
            case "UnresolvedTableValuedFunction":
                _check_function(_strings(node.name()), TABLE_FUNCTIONS)
    for node in expressions:
        match _class_of(node):
            case "UnresolvedFunction":
                _check_function(_strings(node.nameParts()), None)
            case "ExpressionWithUnresolvedIdentifier":
                raise _rejected("a name that is computed (IDENTIFIER) is not allowed")


def _walk(node: Any, subquery: Any, kind: str = "plan") -> Iterator[tuple[str, Any]]:
    yield kind, node
    for child in _items(node.children()):
        yield from _walk(child, subquery, kind)
    if kind == "plan":
        for inner in _items(node.innerChildren()):  # of WITH, and subqueries
            yield from _walk(inner, subquery)
        for expression in _items(node.expressions()):
            yield from _walk(expression, subquery, "expression")
    elif subquery.isInstance(node):
        yield from _walk(node.plan(), subquery)


def _check_table(parts: list[str], known: Collection[str]) -> None:
    if len(parts) != 1 or parts[0].lower() not in known:
        raise _rejected(f"{'.'.join(parts)} is not the store, the one table that there is")


def _check_function(parts: list[str], allowed: Collection[str] | None) -> None:
    name = parts[-1].lower()
    if len(parts) > 1 or name in FORBIDDEN_FUNCTIONS or (allowed is not None and name not in allowed):
        raise _rejected(f"the function {'.'.join(parts)} is not allowed")


def _rejected(reason: str) -> UnsuitableQueryError:
    return UnsuitableQueryError(f"--sql takes one SELECT that reads the store: {reason}")


def _class_of(node: Any) -> str:
    return str(node.getClass().getSimpleName()).rstrip("$")


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _strings(sequence: Any) -> list[str]:
    return [str(item) for item in _items(sequence)]


def _aliases(node: Any) -> list[str]:
    """Return the names that a WITH defines."""
    return [str(inner.alias()) for inner in _items(node.innerChildren())]
