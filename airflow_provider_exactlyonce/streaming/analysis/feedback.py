"""Topics that a pipeline must not write to: those that it reads, and ledgers.

Rows that it writes to a topic that it reads are its next input, for ever; if that is meant, it is declared. A ledger is
written by its own pipeline's driver only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.records import ledger_topic, ledgered
from airflow_provider_exactlyonce.streaming.analysis.logical_plans import Stream


def check_topics(pipeline: str, written: Iterable[str], read: Collection[str], *, allowed: bool) -> None:
    """Check the topics that a pipeline writes to.

    :param read: those that it reads
    :param allowed: it may write to one that it reads
    :raises RefusedError: naming the topic
    """
    for topic in written:
        if (owner := ledgered(topic)) is not None:
            raise RefusedError(
                f"pipeline {pipeline} would write to {topic}, the ledger of pipeline {owner}, which is written by its "
                "driver alone: name another topic"
            )
        if topic in read and not allowed:
            raise _refused(pipeline, topic, "reads it")
    if ledger_topic(pipeline) in read:
        raise RefusedError(
            f"pipeline {pipeline} reads its own ledger, {ledger_topic(pipeline)}: each commit would make the next "
            "batch, for ever"
        )


def check_streams(pipeline: str, written: Collection[str], streams: Iterable[Stream], *, allowed: bool) -> None:
    """Check the same for streams that a pipeline's function reads by itself, by topics' names or a pattern.

    :raises RefusedError: naming the topic
    """
    for stream in streams:
        if not stream.is_kafka:
            continue
        if _reads(stream, ledger_topic(pipeline)):
            check_topics(pipeline, (), {ledger_topic(pipeline)}, allowed=allowed)
        for topic in () if allowed else written:
            if _reads(stream, topic) is not False:
                raise _refused(pipeline, topic, f"its function reads {_described(stream)}")


def _refused(pipeline: str, topic: str, reason: str) -> RefusedError:
    return RefusedError(
        f"pipeline {pipeline} would write to topic {topic}, and {reason}: what it writes would be its next input, for "
        "ever. Name another topic; if it is meant, say so: @pipeline(allow_feedback=True)"
    )


def _reads(stream: Stream, topic: str) -> bool | None:
    """Tell whether a stream reads a topic; None where only Java can read its pattern: each batch tells then."""
    if (pattern := stream.options.get("subscribepattern")) is not None:
        try:
            return re.fullmatch(pattern, topic) is not None
        except re.error:
            return None
    if (assigned := stream.options.get("assign")) is not None:
        return topic in json.loads(assigned)
    return topic in (name.strip() for name in stream.options.get("subscribe", "").split(","))


def _described(stream: Stream) -> str:
    names = ("subscribe", "subscribepattern", "assign")
    return "; ".join(f"{name}={stream.options[name]}" for name in names if name in stream.options)
