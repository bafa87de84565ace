"""The part of a version's plan that its state depends on: read from Spark's plan, kept in savepoints.

Everything is text without expression ids: columns have their topic's name, expressions their functions'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from airflow_provider_exactlyonce import codec

SCHEMA: Final = 1


@dataclass(frozen=True, kw_only=True)
class SourcePlan:
    """One stream that a plan reads.

    :param topic: the topics that it reads, as one text
    :param columns: ``name type`` of each
    """

    topic: str
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class OperatorPlan:
    """One operator that keeps state.

    :param kind: such as ``aggregate`` or ``stream-stream join``
    :param facts: what its state means, by name: lists in the order in which Spark keeps them
    """

    kind: str
    facts: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class WatermarkPlan:
    """One event-time column with a watermark.

    :param delay_milliseconds: how late a row may be
    """

    column: str
    delay_milliseconds: int


@dataclass(frozen=True, kw_only=True)
class QueryPlan:
    """The plan of a version.

    :param sources: in Spark's order: its offsets have no other name for them
    :param operators: in Spark's order
    :param filters: conditions that rows must meet, anywhere in the plan
    :param user_functions: functions in the part that state depends on; a plan does not show their bodies
    :param sink: the sink's properties that its readers notice, by name
    :param options: its expressions have the options of parsers, which release 0.1.0 left out
    """

    sources: tuple[SourcePlan, ...]
    operators: tuple[OperatorPlan, ...] = ()
    watermarks: tuple[WatermarkPlan, ...] = ()
    filters: tuple[str, ...] = ()
    user_functions: tuple[str, ...] = ()
    sink: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: bool = False


def encode(plan: QueryPlan) -> dict[str, Any]:
    """Return a plan's JSON form."""
    return {"schema": SCHEMA, **asdict(plan)}


def decode(body: Mapping[str, Any] | None) -> QueryPlan | None:
    """Read a plan; None when there is none, or a newer release wrote it: all else is still known then."""
    return codec.load(QueryPlan, body, "the plan of a job") if body and body["schema"] == SCHEMA else None
