"""Writes Spark's expressions down so that two versions of a job give the same text when they mean the same.

Left out is what differs from analysis to analysis (expression ids, seeds, names of lambda variables) and what a
session's settings decide (ANSI mode, time zone).
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from airflow_provider_exactlyonce.streaming.spark.jvm import elements, simple_name, tree

_INFIX: Final = {
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "Remainder": "%",
    "TimestampAddInterval": "+",
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "And": "and",
    "Or": "or",
}
#: Their operands are sorted.
_COMMUTATIVE: Final = frozenset({"Add", "Multiply", "EqualTo", "EqualNullSafe", "And", "Or"})
#: They only say something about their child.
_TRANSPARENT: Final = frozenset(
    {
        "Alias",
        "KnownNullable",
        "KnownNotNull",
        "KnownFloatingPointNormalized",
        "NormalizeNaNAndZero",
        "PromotePrecision",
    }
)
#: Their arguments are seeds, new with every analysis.
_SEEDED: Final = frozenset({"Rand", "Randn", "Uuid", "Shuffle", "RandStr", "Uniform"})
_USER_FUNCTIONS: Final = frozenset({"PythonUDF", "ScalaUDF", "PythonUDAF", "ScalaAggregator", "HiveSimpleUDF"})
_NAMES: Final = {
    "Average": "avg",
    "CaseWhen": "case",
    "SecondsToTimestamp": "timestamp_seconds",
    "HyperLogLogPlusPlus": "approx_count_distinct",
    "CreateArray": "array",
}
_TYPES: Final = "org.apache.spark.sql.types."
_COLLECTIONS: Final = ("scala.collection.immutable.", "org.apache.spark.sql.catalyst.util.CaseInsensitiveMap")
_UNITS: Final = (("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000), ("second", 1_000_000))


class Expressions:
    """Writes expressions of one plan; gathers the user functions that state depends on."""

    def __init__(self) -> None:
        self.user_functions: set[str] = set()

    def text(self, expression: Any, columns: Mapping[int, str], *, state: bool = False) -> str:
        """Return an expression's text.

        :param columns: {id of an attribute: its text}
        :param state: state depends on it
        """
        text = _Text(columns).write(expression)
        if state:
            self.note_functions(text)
        return text

    def conjuncts(self, condition: Any, columns: Mapping[int, str]) -> list[str]:
        """Return the parts of a condition that must all hold, without those that only say that something is there."""
        return [self.text(part, columns) for part in self.split(condition) if simple_name(part) != "IsNotNull"]

    def split(self, condition: Any) -> Iterator[Any]:
        """Yield the parts of a condition that must all hold."""
        if simple_name(condition) == "And":
            yield from self.split(condition.left())
            yield from self.split(condition.right())
        else:
            yield condition

    def aggregates(self, expression: Any, columns: Mapping[int, str]) -> list[str]:
        """Return the aggregate functions in an expression, in the order in which Spark keeps their values."""
        return [
            self.text(part, columns, state=True)
            for part in tree(expression)
            if simple_name(part) == "AggregateExpression"
        ]

    def maker(self, plan: Any, name: str, columns: Mapping[int, str]) -> str:
        """Return the origin of columns that no expression makes: a function, a generator, a table."""
        for expression in elements(plan.expressions()):
            if simple_name(expression) in _USER_FUNCTIONS or name == "Generate":
                return self.text(expression, columns)
        return name[0].lower() + name[1:]

    def note_functions(self, text: str) -> None:
        """Note the user functions in a text; they may come from the expressions of its columns."""
        self.user_functions.update(text.split(_MARK)[1::2])


_MARK: Final = "`"
#: In options: all but what ends them, or marks a user function.
_AS_IT_IS: Final = "".join(set(string.punctuation) - {*"()%", _MARK}) + " "
_QUOTE: Final = "'"


class _Text:
    """Writes one expression."""

    def __init__(self, columns: Mapping[int, str]) -> None:
        self._columns: Final = columns
        self._variables: dict[int, str] = {}

    def write(self, expression: Any) -> str:
        name = simple_name(expression)
        if name == "AttributeReference":
            return self._columns.get(expression.exprId().id()) or str(expression.name())
        if name == "Literal":
            return _literal(expression)
        if name == "NamedLambdaVariable":
            return self._variables.setdefault(expression.exprId().id(), f"v{len(self._variables)}")
        if name in _TRANSPARENT:
            return self.write(expression.child())
        special: Callable[[Any], str] | None = {
            "Cast": self._cast,
            "GetStructField": lambda node: f"{self.write(node.child())}.{node.extractFieldName()}",
            "GetArrayStructFields": lambda node: f"{self.write(node.child())}.{node.field().name()}",
            "AggregateExpression": self._aggregate,
            "CreateNamedStruct": self._struct,
            "Between": lambda node: (
                f"{self.write(node.input())} between {self.write(node.lower())} and {self.write(node.upper())}"
            ),
            "DatetimeSub": lambda node: f"({self.write(node.start())} - {self.write(node.interval())})",
        }.get(name)
        if special is not None:
            return special(expression)
        children = [] if name in _SEEDED else [self.write(child) for child in elements(expression.children())]
        if name in _INFIX:
            joined = f" {_INFIX[name]} ".join(sorted(children) if name in _COMMUTATIVE else children)
            return f"({joined})"
        if name in _USER_FUNCTIONS:
            return f"{_MARK}{_function_name(expression)}{_MARK}({', '.join(children)})"
        function_name = _NAMES.get(name, name.lower())
        return f"{function_name}({', '.join([*children, *_own_arguments(expression)])})"

    def _cast(self, expression: Any) -> str:
        child = expression.child()
        text = self.write(child)  # a literal's type depends on the other side of the comparison
        return text if simple_name(child) == "Literal" else f"cast({text} as {expression.dataType().simpleString()})"

    def _aggregate(self, expression: Any) -> str:
        function = expression.aggregateFunction()
        children = ", ".join([*map(self.write, elements(function.children())), *_own_arguments(function, flags=True)])
        name = simple_name(function)
        distinct = "distinct " if expression.isDistinct() else ""
        condition = expression.filter()
        filter_text = f" where {self.write(condition.get())}" if condition.isDefined() else ""
        return f"{_NAMES.get(name, name.lower())}({distinct}{children}){filter_text}"

    def _struct(self, expression: Any) -> str:
        names = [str(literal.value()) for literal in elements(expression.nameExprs())]
        values = list(elements(expression.valExprs()))
        if names == ["start", "end"] and (window := self._window(*values)):
            return window
        return f"struct({', '.join(f'{name}: {self.write(value)}' for name, value in zip(names, values, strict=True))})"

    def _window(self, start: Any, end: Any) -> str | None:
        """Return the ``window`` or ``session_window`` that a structure stands for, None for any other structure."""
        start, end = _bare(start), _bare(end)
        if {simple_name(start), simple_name(end)} != {"PreciseTimestampConversion"}:
            return None
        remainder = next((node for node in tree(start) if simple_name(node) == "Remainder"), None)
        if remainder is None:
            gap = next((node for node in tree(end) if simple_name(node) in ("TimestampAddInterval", "TimeAdd")), None)
            if gap is None:
                return None
            left, right = elements(gap.children())
            return f"session_window({self.write(left)}, {self.write(_bare(right)).strip(_QUOTE)})"
        shifted = remainder.left()  # conversion(time) - offset
        length = _bare(end.child())
        if simple_name(shifted) != "Subtract" or simple_name(length) != "Add":
            return None
        slide, offset, size = (
            int(_bare(literal).value()) for literal in (remainder.right(), shifted.right(), length.right())
        )
        parts = [self.write(shifted.left().child()), _duration(size)]
        parts += [f"every {_duration(slide)}"] if slide != size else []
        parts += [f"from {_duration(offset)}"] if offset else []
        return f"window({', '.join(parts)})"


def _bare(expression: Any) -> Any:
    while simple_name(expression) in ("KnownNullable", "KnownNotNull", "Cast"):
        expression = expression.child()
    return expression


def _duration(microseconds: int) -> str:
    for unit, size in _UNITS:
        if microseconds % size == 0:
            number = microseconds // size
            return f"{number} {unit}" + ("s" if number != 1 else "")
    return f"{microseconds} microseconds"


def _literal(expression: Any) -> str:
    value = expression.value()
    if value is None:
        return "null"
    kind = str(expression.dataType().typeName())
    if kind.startswith("interval") and isinstance(value, int):
        return _duration(value) if "month" not in kind and "year" not in kind else f"{value} months"
    return f"'{value}'" if kind.startswith(("string", "varchar", "char")) else str(value)


def _function_name(expression: Any) -> str:
    name = simple_name(expression)
    if name == "ScalaUDF":
        udf_name = expression.udfName()
        return str(udf_name.get()) if udf_name.isDefined() else "udf"
    return str(expression.name())


def _own_arguments(expression: Any, *, flags: bool = False) -> list[str]:
    """Return the arguments that aren't expressions.

    :param flags: booleans, too; most of them are settings of the session
    """
    texts: list[str] = []
    arguments = expression.productIterator()
    while arguments.hasNext():
        argument = arguments.next()
        if isinstance(argument, bool):
            texts += [str(argument).lower()] if flags and argument else []
        elif isinstance(argument, str | int | float):
            texts.append(str(argument))
        elif hasattr(argument, "getClass"):
            kind = argument.getClass().getName()
            if kind.startswith(_TYPES):
                texts.append(str(argument.simpleString()))
            elif kind.startswith(_COLLECTIONS) and "Map" in kind:
                texts += _options(argument)
    return texts


def _options(options: Any) -> list[str]:
    """Return the options of a parser; Spark ignores the case of their names."""
    pairs: list[str] = []
    iterator = options.iterator()
    while iterator.hasNext():
        option = iterator.next()
        pairs.append(f"{str(option._1()).lower()}={quote(str(option._2()), safe=_AS_IT_IS)}")
    return [f"options({', '.join(sorted(pairs))})"] if pairs else []
