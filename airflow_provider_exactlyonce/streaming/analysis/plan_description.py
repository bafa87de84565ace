"""Describes the meaning of a job's state, from the analysed plan of its result: see :mod:`~…checkpoint.plan`.

Spark compares the types of a state's keys and values with those of a new plan, and nothing else; this description
distinguishes a sum from a maximum. It walks the plan as the user's function has built it, down to the marks that
sources leave, and names every column by the topic's column that it is made of.

It touches classes that are private to Spark 4.2; ``tests/integration/streaming/analysis/test_plan_description.py`` is
the contract: if that fails with another Spark, repair this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.checkpoint.plan import OperatorPlan, QueryPlan, SourcePlan, WatermarkPlan
from airflow_provider_exactlyonce.streaming.analysis.expressions import Expressions
from airflow_provider_exactlyonce.streaming.analysis.source_mark import topics_of_mark
from airflow_provider_exactlyonce.streaming.spark.jvm import analyzed, elements, simple_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DAY_MILLISECONDS: Final = 24 * 60 * 60 * 1000

#: {id of an attribute: its text}
Columns = dict[int, str]


def describe(frame: DataFrame, sink: Mapping[str, tuple[str, ...]]) -> QueryPlan:
    """Return a job's plan for comparisons; reads no data and asks no broker.

    :param frame: the stream that goes to the sink
    :param sink: the sink's properties that its readers notice
    """
    plan = analyzed(frame)
    walk = _Walk()
    walk.need(_ids(plan.output()), plan)
    walk.columns(plan)
    for condition in walk.filters if walk.operators else ():
        walk.expressions.note_functions(condition)
    return QueryPlan(
        sources=tuple(walk.sources.values()),
        operators=tuple(walk.operators),
        watermarks=tuple(walk.watermarks),
        filters=tuple(sorted(walk.filters)),
        user_functions=tuple(sorted(walk.expressions.user_functions)),
        sink=sink,
        options=True,
    )


class _Walk:
    """One walk through one plan."""

    def __init__(self) -> None:
        self.sources: dict[tuple[str, ...], SourcePlan] = {}
        self.operators: list[OperatorPlan] = []
        self.watermarks: list[WatermarkPlan] = []
        self.filters: set[str] = set()
        self.expressions: Final = Expressions()
        self._needed: set[int] = set()
        self._shared: dict[int, Any] = {}
        #: {ids of a join's columns: ids that are used above it}
        self._used_above_join: dict[tuple[int, ...], frozenset[int]] = {}
        self._stateful: Final[Mapping[str, Callable[[Any, Columns], OperatorPlan]]] = {
            "Aggregate": self._aggregate,
            "Distinct": self._distinct,
            "Deduplicate": lambda plan, columns: self._deduplicate("dropDuplicates", plan, columns),
            "DeduplicateWithinWatermark": lambda plan, columns: self._deduplicate(
                "dropDuplicatesWithinWatermark", plan, columns
            ),
            "Join": self._join,
            "GlobalLimit": self._limit,
            "FlatMapGroupsInPandasWithState": self._groups_with_state,
            "TransformWithStateInPySpark": self._transform_with_state,
        }

    def need(self, ids: Iterable[int], plan: Any) -> None:
        """Note which columns are used: Spark keeps no state for an unused aggregate."""
        self._needed.update(ids)
        name = simple_name(plan)
        if topics_of_mark(plan, name) is not None:
            return
        if name == "WithCTE":
            self._shared.update({definition.id(): definition.child() for definition in elements(plan.cteDefs())})
            self.need((), plan.plan())
            return
        if name == "CTERelationRef":
            shared = self._shared[plan.cteId()]
            wanted = [
                inner
                for outer, inner in zip(_ids(plan.output()), _ids(shared.output()), strict=True)
                if outer in self._needed
            ]
            self.need(wanted, shared)
            return
        if name in ("Project", "Aggregate"):
            expressions = plan.projectList() if name == "Project" else plan.aggregateExpressions()
            for expression in elements(expressions):
                if expression.exprId().id() in self._needed:
                    self._needed.update(_ids(expression.references()))
            for key in elements(plan.groupingExpressions()) if name == "Aggregate" else ():
                self._needed.update(_ids(key.references()))
        else:
            self._needed.update(_ids(plan.references()))
        if name == "Union":  # its columns are known by the first child's ids
            wanted = [number for number, id in enumerate(_ids(plan.output())) if id in self._needed]
            for child in elements(plan.children()):
                ids = _ids(child.output())
                self._needed.update(ids[number] for number in wanted)
        if name == "Join":
            self._used_above_join[tuple(_ids(plan.output()))] = frozenset(self._needed)
        for child in elements(plan.children()):
            self.need((), child)

    def columns(self, plan: Any) -> Columns:
        """Return the expressions of a plan's columns, and describe its operators on the way, outermost first."""
        name = simple_name(plan)
        topic = topics_of_mark(plan, name)
        if topic is not None:
            return self._source(topic, plan)
        if name == "WithCTE":
            return self.columns(plan.plan())
        if name == "CTERelationRef":
            shared = self._shared[plan.cteId()]
            inner = self.columns(shared)
            pairs = zip(_ids(plan.output()), _ids(shared.output()), strict=True)
            return {outer: inner[id] for outer, id in pairs if id in inner}
        position = len(self.operators)
        children = [self.columns(child) for child in elements(plan.children())]
        columns: Columns = {id: text for child in children for id, text in child.items()}
        if name == "Filter":
            self.filters.update(self.expressions.conjuncts(plan.condition(), columns))
        elif name == "EventTimeWatermark":
            self._watermark(plan, columns)
        elif name in self._stateful and self._keeps_state(plan, name):
            self.operators.insert(position, self._stateful[name](plan, columns))
        return self._output(plan, name, children, columns)

    def _output(self, plan: Any, name: str, children: list[Columns], columns: Columns) -> Columns:
        if name in ("Project", "Aggregate"):
            expressions = plan.projectList() if name == "Project" else plan.aggregateExpressions()
            return {
                expression.exprId().id(): self.expressions.text(expression, columns)
                for expression in elements(expressions)
                if expression.exprId().id() in self._needed
            }
        output: Columns = {}
        for number, attribute in enumerate(elements(plan.output())):
            id = attribute.exprId().id()
            if id not in self._needed:
                continue
            if name == "Union":
                parts = [
                    child.get(child_id, "")
                    for child, child_id in zip(
                        children, (_ids(branch.output())[number] for branch in elements(plan.children())), strict=True
                    )
                ]
                output[id] = parts[0] if len(set(parts)) == 1 else f"union({', '.join(parts)})"
            elif name == "Expand" and id not in columns:
                texts = [
                    self.expressions.text(projection.apply(number), columns)
                    for projection in elements(plan.projections())
                ]
                output[id] = " or ".join(dict.fromkeys(texts))
            else:
                output[id] = columns.get(id) or f"{self.expressions.maker(plan, name, columns)}.{attribute.name()}"
        return output

    def _source(self, topic: str, plan: Any) -> Columns:
        attributes = list(elements(plan.output()))
        columns = tuple(f"{attribute.name()} {attribute.dataType().simpleString()}" for attribute in attributes)
        # Spark takes two leaves for one source when they are equal, expression ids included.
        self.sources.setdefault(
            (topic, *(str(attribute.exprId().id()) for attribute in attributes)),
            SourcePlan(topic=topic, columns=columns),
        )
        return {attribute.exprId().id(): f"{topic}.{attribute.name()}" for attribute in attributes}

    def _watermark(self, plan: Any, columns: Columns) -> None:
        delay = plan.delay()
        months, days, microseconds = (
            int(_field(delay, name)) for name in ("months", "days", "microseconds")
        )  # a month has 31 days here, as in Spark
        watermark = WatermarkPlan(
            column=self.expressions.text(plan.eventTime(), columns),
            delay_milliseconds=(months * 31 + days) * _DAY_MILLISECONDS + microseconds // 1000,
        )
        if watermark not in self.watermarks:
            self.watermarks.append(watermark)

    @staticmethod
    def _keeps_state(plan: Any, name: str) -> bool:
        streams = [child.isStreaming() for child in elements(plan.children())]
        return all(streams) if name == "Join" else streams[0]

    def _aggregate(self, plan: Any, columns: Columns) -> OperatorPlan:
        functions: dict[str, None] = {}
        for expression in elements(plan.aggregateExpressions()):
            if expression.exprId().id() in self._needed:
                functions.update(dict.fromkeys(self.expressions.aggregates(expression, columns)))
        keys = self._texts(elements(plan.groupingExpressions()), columns)
        return OperatorPlan(kind="aggregate", facts={"group by": keys, "functions": tuple(functions)})

    def _distinct(self, plan: Any, columns: Columns) -> OperatorPlan:
        keys = self._texts(elements(plan.output()), columns)
        return OperatorPlan(kind="aggregate", facts={"group by": keys, "functions": ()})

    def _deduplicate(self, kind: str, plan: Any, columns: Columns) -> OperatorPlan:
        return OperatorPlan(kind=kind, facts={"columns": self._texts(elements(plan.keys()), columns)})

    def _join(self, plan: Any, columns: Columns) -> OperatorPlan:
        condition = plan.condition()
        left_ids = set(_ids(plan.left().output()))
        used_above = self._used_above_join[tuple(_ids(plan.output()))]
        keys: list[str] = []
        other_conditions: list[str] = []
        for part in self.expressions.split(condition.get()) if condition.isDefined() else ():
            text = self.expressions.text(part, columns, state=True)
            (
                keys if simple_name(part).startswith("Equal") and self._is_key(part, left_ids) else other_conditions
            ).append(text)
        stored = {
            f"{side} columns": tuple(
                columns.get(attribute.exprId().id(), str(attribute.name()))
                for attribute in elements(child.output())
                if attribute.exprId().id() in used_above
            )
            for side, child in (("left", plan.left()), ("right", plan.right()))
        }
        facts = {
            "type": (str(plan.joinType().sql()),),
            "on": tuple(keys),
            "where": tuple(sorted(other_conditions)),
            **stored,
        }
        return OperatorPlan(kind="stream-stream join", facts=facts)

    @staticmethod
    def _is_key(equality: Any, left_ids: set[int]) -> bool:
        """Tell whether an equality compares something of the left side with something of the right."""
        sides = [[id in left_ids for id in _ids(side.references())] for side in (equality.left(), equality.right())]
        return (all(sides[0]) and not any(sides[1])) or (all(sides[1]) and not any(sides[0]))

    def _limit(self, plan: Any, columns: Columns) -> OperatorPlan:
        return OperatorPlan(kind="limit", facts={"rows": (self.expressions.text(plan.limitExpr(), columns),)})

    def _groups_with_state(self, plan: Any, columns: Columns) -> OperatorPlan:
        function = plan.functionExpr()
        self.expressions.user_functions.add(str(function.name()))
        facts = {
            "group by": self._texts(elements(plan.groupingAttributes()), columns),
            "function": (str(function.name()),),
            "output mode": (str(plan.outputMode().toString()).lower(),),
            "timeout": (str(plan.timeout().toString()),),
        }
        return OperatorPlan(kind="applyInPandasWithState", facts=facts)

    def _transform_with_state(self, plan: Any, columns: Columns) -> OperatorPlan:
        self.expressions.user_functions.add("the processor of transformWithState")
        keys = islice(elements(plan.left().output()), plan.groupingAttributesLen())
        # Its modes and variables are in the operator's own metadata.
        return OperatorPlan(kind="transformWithState", facts={"group by": self._texts(keys, columns)})

    def _texts(self, expressions: Iterable[Any], columns: Columns) -> tuple[str, ...]:
        """Return the texts of expressions that state depends on."""
        return tuple(self.expressions.text(expression, columns, state=True) for expression in expressions)


def _ids(attributes: Any) -> list[int]:
    """Return the ids of a sequence or a set of attributes."""
    return [attribute.exprId().id() for attribute in elements(attributes.toSeq())]


def _field(value: Any, name: str) -> Any:
    return value.getClass().getField(name).get(value)
