"""The mark in a plan where a declared source ends and the user's function begins."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.streaming.spark.jvm import analyzed, simple_name, tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MARK: Final = "exactlyonce source "


def mark(records: DataFrame, topics: SourceTopics) -> DataFrame:
    """Return a source's records with its mark."""
    return records.alias(f"{_MARK}{topics}")


def counted(records: DataFrame, topics: SourceTopics) -> DataFrame:
    """Return a source's records, after those that it leaves out, so that Spark counts them there.

    No filter of the user's moves below such a count. Two sources may read one topic, and Spark wants a name for each.
    """
    from pyspark.sql import functions as F

    return records.observe(f"{_MARK}{topics} {uuid.uuid4().hex}", F.count(F.lit(1)).alias("rows"))


def is_count(node: Any) -> bool:
    """Tell whether an executed node that collects metrics is that of :func:`counted`, and not one of the user's."""
    return str(node.name()).startswith(_MARK)


def topics_of_mark(plan: Any, name: str) -> str | None:
    """Return the topics, as one text, of the source that ends at a plan node, None for any other node.

    :param name: the simple name of the node's class
    """
    alias = str(plan.alias()) if name == "SubqueryAlias" else ""
    return alias.removeprefix(_MARK) if alias.startswith(_MARK) else None


def sources_of(result: DataFrame) -> list[SourceTopics]:
    """Return the topics of each declared source in the order in which Spark numbers them.

    :param result: the user's function's result for them
    """
    marks = dict.fromkeys(topics_of_mark(node, simple_name(node)) for node in tree(analyzed(result)))
    return [SourceTopics.parse(text) for text in marks if text is not None]
