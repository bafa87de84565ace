"""The guarantee planner: derives the guarantee of each link of a pipeline, and that from end to end.

A source can be replayed or not, the engine has a checkpoint, a sink does or does not double replayed rows. Records are
lost if any link loses them; they are doubled if a sink doubles replayed rows and anything is replayed, or if a sink
repeats rows by itself. If neither can happen, the guarantee is exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.analysis import feedback
from airflow_provider_exactlyonce.streaming.analysis.logical_plans import Stream, undeclared_streams
from airflow_provider_exactlyonce.streaming.job.checkpoint_config import CheckpointingMode
from airflow_provider_exactlyonce.streaming.job.kafka_source import REPLAYABLE
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    IDEMPOTENT,
    IDEMPOTENT_UNFENCED,
    NEITHER,
    TWO_PHASE_COMMIT,
    WRITE_AHEAD_LOG,
    WRITE_AHEAD_LOG_ASKED,
)
from airflow_provider_exactlyonce.text_tables import pairs, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition

#: What is left when some records may be lost and others doubled.
NO_GUARANTEE: Final = "none"

#: Sources of Spark that are read again from the checkpoint's positions; the ledger knows these of Kafka only.
_READ_AGAIN: Final = frozenset(
    {"rate", "rate-micro-batch", "parquet", "json", "csv", "text", "orc", "avro", "xml", "delta", "statestore"}
)
#: Settings, by the last part of their names, with which Spark does not run batches one after the other.
_NO_BATCHES: Final[Mapping[str, str]] = {
    "asyncprogresstrackingenabled": "Spark writes a batch's offsets down after it ran: a crash repeats it with others",
    "continuous": "a continuous trigger has no batches that a sink could commit",
    "realtime": "a real-time trigger gives rows away before their batch is complete",
}
#: What a sink does about rows that it is given again.
_SINKS: Final[Mapping[str, str]] = {
    TWO_PHASE_COMMIT: "a batch's rows and its ledger entry become visible together",
    IDEMPOTENT: "a batch that is written again changes nothing; readers may see older rows for a while",
    IDEMPOTENT_UNFENCED: (
        "a task of an older attempt that was frozen and comes late writes over what newer commits have written, for "
        "good: name a commit_column"
    ),
    WRITE_AHEAD_LOG_ASKED: "what is logged is delivered once: the target is asked for what it has",
    WRITE_AHEAD_LOG: "a delivery that was cut off is repeated, and the target can't be asked for what it has",
    NEITHER: "a batch that is run again is written again",
}


@dataclass(frozen=True, kw_only=True)
class Link:
    """One source, the engine, or one sink.

    :param link: ``source``, ``engine`` or ``sink``
    :param replayable: of a source: whether records can be read again
    :param checkpointed: of a source, its position; of the engine, its state
    :param writes: of a sink: how a replay does not double its rows, in the words of the SPI
    :param loses: records may be lost here
    :param doubles: records that are replayed may be doubled here
    :param repeats: records may be doubled here even if no source replays them
    """

    link: str
    name: str
    reason: str
    replayable: bool | None = None
    checkpointed: bool | None = None
    writes: str | None = None
    loses: bool = False
    doubles: bool = False
    repeats: bool = False

    @property
    def gives(self) -> str:
        """The link's own guarantee."""
        return _guarantee_of(loses=self.loses, doubles=self.doubles or self.repeats)

    @property
    def row(self) -> dict[str, str]:
        """The link's row in the table."""
        words = {None: "-", True: "yes", False: "no"}
        return {
            "link": f"{self.link} {self.name}",
            "replayable": words[self.replayable],
            "checkpointed": words[self.checkpointed],
            "writes": self.writes or "-",
            "gives": self.gives,
            "because": self.reason,
        }


@dataclass(frozen=True, kw_only=True)
class DeliveryGuarantee:
    """The guarantee of a pipeline's links.

    :param declared: the declared guarantee
    :param allow_weaker: it runs with less
    :param unsure: parts that may give other rows when a batch is run again
    """

    pipeline: str
    declared: CheckpointingMode
    allow_weaker: bool
    links: Sequence[Link]
    unsure: Sequence[str] = ()

    @property
    def loses(self) -> bool:
        """Whether records may be lost."""
        return any(link.loses for link in self.links)

    @property
    def doubles(self) -> bool:
        """Whether records may be doubled: by a link that repeats by itself, or doubles replayed rows if any are."""
        return any(link.repeats or (link.doubles and self._replays) for link in self.links)

    @property
    def gives(self) -> str:
        """The guarantee from end to end, one of :class:`CheckpointingMode` or :data:`NO_GUARANTEE`."""
        return _guarantee_of(loses=self.loses, doubles=self.doubles)

    @property
    def reason(self) -> str:
        """Why it is less than exactly once, in words by link; or that no link loses or doubles a record."""
        weak_links = [link for link in self.links if link.loses or link.repeats or (link.doubles and self._replays)]
        return (
            "; ".join(f"{link.link} {link.name}: {link.reason}" for link in weak_links)
            or "no link loses or doubles a record"
        )

    @property
    def is_weaker(self) -> bool:
        """Whether the pipeline can't have its declared guarantee."""
        if self.declared is CheckpointingMode.AT_LEAST_ONCE:
            return self.loses
        if self.declared is CheckpointingMode.AT_MOST_ONCE:
            return self.doubles
        return self.loses or self.doubles

    def attempts(self, wished: int) -> int:
        """Return how often one batch may be attempted.

        Sources give a batch again to a second attempt of the same run, those too that can't after a crash. Where these
        are all, and a link would double it, one attempt leaves at most once.

        :param wished: attempts of one batch before the query fails
        """
        return 1 if any(link.doubles for link in self.links) and not self._replays else wished

    @property
    def _replays(self) -> bool:
        return any(link.replayable for link in self.links)

    def check(self) -> None:
        """Check that the pipeline can have its declared guarantee.

        :raises RefusedError: with the table
        """
        if self.is_weaker and not self.allow_weaker:
            raise RefusedError(
                f"pipeline {self.pipeline} declares guarantee={self.declared.value!r} and can have "
                f"{self.gives!r}: {self.reason}. Change that, declare less, or run it with allow_weaker=True\n"
                f"{table([link.row for link in self.links])}"
            )

    @property
    def warning(self) -> str | None:
        """A warning of the parts that may give other rows when a batch is run again; None when none are known."""
        if not self.unsure:
            return None
        stops = "" if self.is_weaker else ", and the pipeline stops then"
        return (
            f"a batch that is run again, as after a crash, may give other rows than were committed{stops}: "
            f"{'; '.join(self.unsure)}"
        )

    @property
    def document(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "pipeline": self.pipeline,
            "declared": self.declared.value,
            "gives": self.gives,
            "weaker": self.is_weaker,
            "allow_weaker": self.allow_weaker,
            "reason": self.reason,
            "nondeterministic": list(self.unsure),
            "links": [{**vars(link), "gives": link.gives} for link in self.links],
        }

    @property
    def text(self) -> str:
        """The table and the result, for people."""
        facts = {"pipeline": self.pipeline, "declared": self.declared.value, "gives": self.gives, "reason": self.reason}
        end = ""
        if self.is_weaker:
            end = "it runs with less: allow_weaker=True" if self.allow_weaker else "it is refused at start"
        warning = self.warning and f"warning: {self.warning}"
        lines = (table([link.row for link in self.links]), pairs(facts), warning, end)
        return "\n\n".join(filter(None, lines))


def examine(
    pipeline: PipelineDefinition, result: DataFrame, unsure: Sequence[str], asked: Mapping[str, str]
) -> DeliveryGuarantee:
    """Return the guarantee of a pipeline's links.

    :param result: the stream that goes to the sinks, or the stream for planning only
    :param unsure: parts that may give other rows when a batch is run again
    :param asked: Spark settings
    :raises RefusedError: when its function reads a topic that its sink writes to
    """
    streams = undeclared_streams(result)
    feedback.check_streams(pipeline.name, pipeline.sink_topics, streams, allowed=pipeline.allow_feedback)
    links = [
        *(_declared(*source.link, may_lose=source.may_lose) for source in pipeline.sources.values()),
        *(_undeclared(stream) for stream in streams),
        _engine(pipeline, unsure, asked),
        *_sinks(pipeline),
    ]
    return DeliveryGuarantee(
        pipeline=pipeline.name,
        declared=pipeline.guarantee,
        allow_weaker=pipeline.allow_weaker,
        links=tuple(links),
        unsure=tuple(unsure),
    )


def _guarantee_of(*, loses: bool, doubles: bool) -> str:
    if loses and doubles:
        return NO_GUARANTEE
    if loses:
        return CheckpointingMode.AT_MOST_ONCE.value
    return (CheckpointingMode.AT_LEAST_ONCE if doubles else CheckpointingMode.EXACTLY_ONCE).value


def _declared(name: str, reason: str, *, may_lose: bool) -> Link:
    if may_lose:
        reason = "failOnDataLoss=false: what retention removed before it was read is skipped unnoticed"
    return Link(link="source", name=name, reason=reason, replayable=True, checkpointed=True, loses=may_lose)


def _undeclared(stream: Stream) -> Link:
    if stream.is_kafka:
        return _declared("kafka, read by the function", REPLAYABLE, may_lose=stream.may_lose)
    if stream.source in _READ_AGAIN:
        reason = "only Spark's checkpoint has its position, the ledger has none: a restored checkpoint repeats rows"
        return Link(link="source", name=stream.source, reason=reason, replayable=True, checkpointed=True, doubles=True)
    reason = "what a crash interrupts can't be read again"
    return Link(link="source", name=stream.source, reason=reason, replayable=False, checkpointed=False, loses=True)


def _engine(pipeline: PipelineDefinition, unsure: Sequence[str], asked: Mapping[str, str]) -> Link:
    name = "Spark micro-batches"
    options = [option for source in pipeline.sources.values() for option in source.spark_settings.items()]
    for setting, value in (*asked.items(), *options):
        reason = _NO_BATCHES.get(setting.rpartition(".")[2].lower())
        if reason is not None and value.lower() != "false":
            return Link(
                link="engine", name=name, reason=f"{setting}={value}: {reason}", checkpointed=False, doubles=True
            )
    if pipeline.mode is CheckpointingMode.AT_MOST_ONCE:
        reason = "progress is recorded before a batch is written: one that fails is skipped, and recorded as lost"
        return Link(link="engine", name=name, reason=reason, checkpointed=True, loses=True)
    others = pipeline.routes.others
    several = len(others) + (pipeline.sink is not None) > 1
    if unsure and (several or any(route.sink.guarantee in (IDEMPOTENT, IDEMPOTENT_UNFENCED) for route in others)):
        destination = "to the sinks that lack it" if several else "under other keys"
        reason = f"a batch that is run again may give other rows {destination}: {'; '.join(unsure)}"
        return Link(link="engine", name=name, reason=reason, checkpointed=True, doubles=True)
    reason = "state and positions go back together to the last batch"
    return Link(link="engine", name=name, reason=reason, checkpointed=True)


def _sinks(pipeline: PipelineDefinition) -> Iterator[Link]:
    if pipeline.sink is not None:
        name = f"kafka {', '.join(pipeline.sink.topics) or 'by row'}"
        if pipeline.mode is CheckpointingMode.EXACTLY_ONCE:
            yield _sink(name, TWO_PHASE_COMMIT)
        elif pipeline.mode is CheckpointingMode.AT_LEAST_ONCE:
            yield _sink(name, NEITHER)
        else:
            yield Link(link="sink", name=name, reason="no batch is written a second time", writes=NEITHER)
    for share in pipeline.routes.others:
        yield _sink(share.sink.name, share.sink.guarantee)


def _sink(name: str, writes: str) -> Link:
    if writes not in _SINKS:
        raise RefusedError(f"sink {name} has guarantee={writes!r}: one of {', '.join(_SINKS)}")
    return Link(
        link="sink",
        name=name,
        reason=_SINKS[writes],
        writes=writes,
        doubles=writes in (NEITHER, IDEMPOTENT_UNFENCED),
        repeats=writes == WRITE_AHEAD_LOG,
    )
