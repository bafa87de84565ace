"""The text of an ``offsets/N``: a recorded one, made to fit another lineage, or a new one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics


def adapted(text: str, *, confs_of: str | None, watermark: int | None) -> str:
    """Return an offset log entry with the lineage's own configuration.

    The configuration says how state is stored, the number of state partitions too: with that of before a rescale Spark
    would refuse the state.

    :param text: the recorded entry
    :param confs_of: the lineage's newest entry, None when it has none
    :param watermark: the batch's watermark, milliseconds since the epoch; None keeps the recorded one
    """
    version, header, sources = text.split("\n", 2)
    metadata = json.loads(header)
    if confs_of is not None:
        metadata["conf"] = json.loads(confs_of.split("\n", 2)[1])["conf"]
    if watermark is not None:
        metadata["batchWatermarkMs"] = watermark
    return "\n".join([version, json.dumps(metadata, separators=(",", ":")), sources])


def composed(
    conf: Mapping[str, str],
    sources: Sequence[SourceTopics],
    ends: Mapping[str, Mapping[Any, int]],
    *,
    timestamp: int,
    watermark: int,
) -> str:
    """Return an offset log entry of declared sources.

    :param conf: the lineage's configuration
    :param sources: the topics of each source, in Spark's order
    :param ends: {topic: {partition: where the batch ends, exclusive}}
    :param timestamp: the batch's, milliseconds since the epoch
    :param watermark: the batch's, milliseconds since the epoch
    """
    metadata = {"batchWatermarkMs": watermark, "batchTimestampMs": timestamp, "conf": dict(conf)}
    lines = ["v1", json.dumps(metadata, separators=(",", ":"))]
    lines += [json.dumps(topics.share(ends)) for topics in sources]  # Spark compares a table's as texts
    return "\n".join(lines)
