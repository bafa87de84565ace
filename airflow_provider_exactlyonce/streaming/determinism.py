"""Finds, in the analysed plan, what may give other rows when a batch is run again, before a replay relies on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.streaming.plans import elements, text, tree

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
        "Mode",
        "ApproximatePercentile",
        "PivotFirst",
        "HistogramNumeric",
    }
)
#: Aggregates that round differently in another order when their input is a float.
_SUMS: Final = frozenset(
    {
        "Sum",
        "Average",
        "TrySum",
        "TryAverage",
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
_SUB_QUERIES: Final = frozenset({"ScalarSubquery", "Exists", "ListQuery", "LateralSubquery"})
_FLOATS: Final = frozenset({"float", "double"})
#: Plan nodes that read something that changes with time.
_LOOK_UPS: Final = frozenset({"LogicalRelation", "DataSourceV2Relation", "HiveTableRelation"})


def find(frame: DataFrame) -> list[str]:
    """Return what may give other rows, each described with its expression; empty when nothing is known to.

    Processing time (``current_timestamp``) is not among it: a replay runs at the recorded time. User functions are
    taken at their word: a function that is not marked as nondeterministic is trusted.

    :param frame: the stream that goes to the sink
    """
    found: dict[str, None] = {}
    for plan in tree(frame._jdf.queryExecution().analyzed()):
        name = plan.getClass().getSimpleName()
        if name in _LOOK_UPS and not plan.isStreaming():
            found[f"{name} reads outside of the stream: {text(plan)}"] = None
        for expression in elements(plan.expressions()):
            for one in tree(expression):
                reason = _reason(one)
                if reason is not None:
                    found[f"{reason}: {text(one)}"] = None
    return list(found)


def _reason(expression: Any) -> str | None:
    name = expression.getClass().getSimpleName()
    if name in _BY_ORDER:
        return f"{name} depends on the order of the rows"
    if (name in _SUMS or name.startswith("Regr")) and any(
        one.dataType().typeName() in _FLOATS for one in elements(expression.children())
    ):
        return f"{name} of floats depends on the order of the rows"
    if name in _SUB_QUERIES:
        return "a sub-query reads outside of the stream"
    if not expression.deterministic() and all(one.deterministic() for one in elements(expression.children())):
        return f"{name} is not deterministic"
    return None
