"""Finds nondeterministic parts in the analysed plan, before a replay relies on equal rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.streaming.analysis.logical_plans import steps, text
from airflow_provider_exactlyonce.streaming.analysis.source_mark import topics_of_mark
from airflow_provider_exactlyonce.streaming.spark.jvm import analyzed, elements, simple_name, tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Expressions that Spark calls deterministic and whose value depends on the order of the rows.
_BY_ORDER: Final = frozenset(
    {
        "CollectList",
        "CollectSet",
        "First",
        "Last",
        "AnyValue",
        "ListAgg",
        "MaxBy",
        "MinBy",
        "MaxMinByK",
        "Mode",
        "ApproximatePercentile",
        "PivotFirst",
        "HistogramNumeric",
        "VectorSum",
        "VectorAvg",
        "ApproxTopK",
        "ApproxTopKAccumulate",
        "ApproxTopKCombine",
        "HllSketchAgg",
    }
)
#: Sketches that do, a class for each type that they are made of.
_SKETCHES_BY_ORDER: Final = ("KllSketchAgg", "KllMergeAgg", "TupleSketchAgg", "TupleUnionAgg")
#: Aggregates that round differently in another order when their input is a float.
_SUMS: Final = frozenset(
    {
        "Sum",
        "Average",
        "TrySum",
        "TryAverage",
        "Product",
        "Corr",
        "CovPopulation",
        "CovSample",
        "Kurtosis",
        "Skewness",
        "StddevPop",
        "StddevSamp",
        "VariancePop",
        "VarianceSamp",
    }
)
#: Spark runs a batch at its recorded time, but evaluates these of the functions of time with the machine's clock.
_CLOCKS: Final = frozenset({"Now", "CurrentTime"})
_SUB_QUERIES: Final = frozenset({"ScalarSubquery", "Exists", "ListQuery", "LateralSubquery"})
_FLOATS: Final = frozenset({"float", "double"})
_DEDUPLICATIONS: Final = frozenset({"Deduplicate", "DeduplicateWithinWatermark"})
#: Plan nodes that read something that changes with time.
_LOOK_UPS: Final = frozenset({"LogicalRelation", "DataSourceV2Relation", "HiveTableRelation"})


def find(frame: DataFrame) -> list[str]:
    """Return the parts that may give other rows, each described with its expression; empty when none are known.

    Processing time (``current_timestamp``) is not among them: a replay runs at the recorded time; ``now`` does not. A
    user function that is not marked as nondeterministic is trusted.

    :param frame: the stream that goes to the sink
    """
    root = analyzed(frame)
    reasons: dict[str, None] = dict.fromkeys(_rows_kept_by_chance(root, _ids(root.output()), {}))
    for plan in steps(root):
        name = simple_name(plan)
        if name in _LOOK_UPS and not plan.isStreaming():
            reasons[f"{name} reads outside of the stream: {text(plan)}"] = None
        if name == "GlobalLimit" and plan.isStreaming() and not _is_of_an_order(plan):
            reasons[f"{name} keeps the rows that come first, unless they are in an order by each key: {text(plan)}"] = (
                None
            )
        for expression in elements(plan.expressions()):
            for part in tree(expression):
                reason = _reason(part)
                if reason is not None:
                    reasons[f"{reason}: {text(part)}{_location(plan, expression)}"] = None
    return list(reasons)


def _is_of_an_order(limit: Any) -> bool:
    """Whether a limit keeps the first rows of an order in which no two are equal: it has each key of an aggregation."""
    [local] = elements(limit.children())
    [sort] = elements(local.children())
    if simple_name(sort) != "Sort":
        return False
    order = _ids(sort.references().toSeq())
    [child] = elements(sort.children())
    while simple_name(child) in ("Filter", "SubqueryAlias"):
        [child] = elements(child.children())
    if simple_name(child) != "Aggregate":
        return False
    keys = list(elements(child.groupingExpressions()))
    return all(simple_name(key) == "AttributeReference" and key.exprId().id() in order for key in keys)


def _location(plan: Any, expression: Any) -> str:
    """Return the column that an expression is part of, or else the condition, and its line in the job, if known."""
    if simple_name(expression) == "Alias":
        location = f", in column {expression.name()}"
    elif expression.dataType().typeName() == "boolean":
        location = f", in a condition of {simple_name(plan)}"
    else:
        location = ""
    sites = [site for part in tree(expression) if (site := part.origin().pysparkErrorContext()).isDefined()]
    return f"{location} ({str(sites[0].get()._2()).splitlines()[0]})" if sites else location


def _rows_kept_by_chance(plan: Any, needed: Set[int], shared: Mapping[int, Any]) -> Iterator[str]:
    """Yield each ``dropDuplicates`` by some columns where others are used: their values come from any of the rows.

    :param needed: ids of the plan's columns that are used above it
    :param shared: {id: plan} of the enclosing ``WITH``
    """
    name = simple_name(plan)
    if topics_of_mark(plan, name) is not None:
        return
    if name == "WithCTE":
        shared = {**shared, **{definition.id(): definition.child() for definition in elements(plan.cteDefs())}}
        yield from _rows_kept_by_chance(plan.plan(), needed, shared)
        return
    if name == "CTERelationRef":
        shared_plan = shared[plan.cteId()]
        yield from _rows_kept_by_chance(shared_plan, _ids_by_position(plan, needed, shared_plan), shared)
        return
    if name in _DEDUPLICATIONS:
        keys = _ids(plan.keys())
        other_columns = [
            str(column.name()) for column in elements(plan.output()) if column.exprId().id() in needed - keys
        ]
        if other_columns:
            yield f"{name} keeps any row of a key, and these of its columns are used: {', '.join(other_columns)}"
    if name in ("Project", "Aggregate"):
        columns = plan.projectList() if name == "Project" else plan.aggregateExpressions()
        used = [column for column in elements(columns) if column.exprId().id() in needed]
        used += elements(plan.groupingExpressions()) if name == "Aggregate" else ()
        child_ids = {number for column in used for number in _ids(column.references().toSeq())}
    else:
        child_ids = {*needed, *_ids(plan.references().toSeq())}
    for child in elements(plan.children()):
        if name == "Union":
            child_ids = _ids_by_position(plan, needed, child)
        yield from _rows_kept_by_chance(child, child_ids, shared)


def _ids_by_position(plan: Any, needed: Set[int], child: Any) -> set[int]:
    """Return the ids of those columns that a plan has under ids of its own, in the same order, if they are needed."""
    pairs = zip(elements(child.output()), elements(plan.output()), strict=True)
    return {child_column.exprId().id() for child_column, column in pairs if column.exprId().id() in needed}


def _ids(attributes: Any) -> set[int]:
    return {attribute.exprId().id() for attribute in elements(attributes)}


def _reason(expression: Any) -> str | None:
    name = simple_name(expression)
    if name in _BY_ORDER or name.startswith(_SKETCHES_BY_ORDER):
        return f"{name} depends on the order of the rows"
    if (name in _SUMS or name.startswith("Regr")) and any(
        child.dataType().typeName() in _FLOATS for child in elements(expression.children())
    ):
        return f"{name} of floats depends on the order of the rows"
    if name in _CLOCKS:
        return f"{name} reads the machine's clock, use current_timestamp()"
    if name in _SUB_QUERIES:
        return "a sub-query reads outside of the stream"
    if not expression.deterministic() and all(child.deterministic() for child in elements(expression.children())):
        return f"{name} is not deterministic"
    return None
