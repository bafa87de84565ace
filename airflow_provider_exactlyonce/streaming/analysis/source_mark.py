"""The mark in a plan where a declared source ends and the user's function begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MARK: Final = "exactlyonce source "


def mark(records: DataFrame, topic: str) -> DataFrame:
    """Return what a source reads with its mark."""
    return records.alias(f"{_MARK}{topic}")


def topic_of_mark(plan: Any, name: str) -> str | None:
    """Return the topic whose source a plan node marks the end of, None for any other node.

    :param name: the simple name of the node's class
    """
    alias = str(plan.alias()) if name == "SubqueryAlias" else ""
    return alias.removeprefix(_MARK) if alias.startswith(_MARK) else None
