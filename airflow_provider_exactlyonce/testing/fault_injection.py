"""Faults at the seams of a running query: between the query and a sink, its ledger, or the sink's target.

Real are the commit coordinator, the order of commits, the group of sinks, the tasks' half, and the sink under test with
its target. In place of Kafka is a ledger in memory, and in place of Spark a loop that plans batches and calls back, as
``foreachBatch`` does. A run that fails is followed by the next one, as under a supervisor.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from typing_extensions import override

from airflow_provider_exactlyonce.checkpoint.layout import parse_offsets
from airflow_provider_exactlyonce.control.home import Lineage
from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    ClaimFailedError,
    CommitUnknownError,
    ExactlyOnceError,
    FencedError,
)
from airflow_provider_exactlyonce.kafka.transaction import ProducerLostError, TransactionSession
from airflow_provider_exactlyonce.kafka.wire import Producer, UnansweredError, WireClient
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.records import EXACTLY_ONCE, CommitRecord
from airflow_provider_exactlyonce.ledger.retention import Expired
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt, TransactionOptions
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction
from airflow_provider_exactlyonce.streaming.commit.coordinator import Callbacks, CommitCoordinator
from airflow_provider_exactlyonce.streaming.commit.exactly_once import TransactionalWriter
from airflow_provider_exactlyonce.streaming.commit.row_router import Tee
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sinks.sink_routes import DIGEST_FIELD, SinkRoutes, column_of
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    OpenWriter,
    Share,
    Sink,
    SinkCommitter,
    SinkContext,
    SinkEntry,
    SinkWriter,
)
from airflow_provider_exactlyonce.streaming.spark import typed_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_T = TypeVar("_T")

PIPELINE: Final = "conformance"
TASKS: Final = 2
#: Batches of a rehearsal; one of them is empty.
BATCHES: Final = 4
#: Runs that may follow each other until all batches are committed.
_RUNS_MAXIMUM: Final = 40
#: Attempts of a batch, and tries of a claim, within one run.
_ATTEMPTS: Final = 3


class Kind(Enum):
    """How a call fails."""

    REFUSED = "fails before it acts, and says so"
    REQUEST_LOST = "fails before it acts, and nobody knows"
    ANSWER_LOST = "acts, then fails"
    REPEATED = "acts, and is repeated by a client that got no answer"
    FROZEN = "is frozen until a successor has claimed, then goes on"
    FROZEN_LONG = "is frozen until a successor has finished, then goes on"


_FREEZING: Final = (Kind.FROZEN, Kind.FROZEN_LONG)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    :param step: the call that it meets, such as ``sink.commit``
    :param kind: what happens to it
    :param call: which of these calls, from 1
    :param following: how many of the calls after it, whichever they are, fail before they act
    """

    step: str
    kind: Kind
    call: int = 1
    following: int = 0

    def __str__(self) -> str:
        more = f", and {self.following} calls after it fail" if self.following else ""
        return f"{self.step} number {self.call} {self.kind.value}{more}"


class InjectedFaultError(ConnectionError):
    """A call gets no answer. Like a database's own error, it is none of the project's errors."""


class Seam:
    """Counts calls, and lets some of them fail.

    :param faults: which
    :param on_freeze: called while a call is frozen, with true when a successor has to finish meanwhile
    """

    def __init__(self, faults: Iterable[Fault] = (), on_freeze: Callable[[bool], None] = lambda long: None) -> None:
        self._faults: Final = list(faults)
        self._on_freeze: Final = on_freeze
        self._unanswered = 0
        self.calls: Counter[str] = Counter()
        self.met: list[Fault] = []

    def call(self, step: str, act: Callable[[], _T]) -> _T:
        """Make a call, unless it fails before it acts.

        :raises InjectedFaultError: when its fault is that it gets no answer
        """
        with self.active():
            return self._call(step, act)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let this seam be the one of :func:`target_call`."""
        previous, _active.seam = getattr(_active, "seam", None), self
        try:
            yield
        finally:
            _active.seam = previous

    def _call(self, step: str, act: Callable[[], _T]) -> _T:
        self.calls[step] += 1
        if self._unanswered:
            self._unanswered -= 1
            raise InjectedFaultError(f"{step}: no answer")
        fault = next((fault for fault in self._faults if (fault.step, fault.call) == (step, self.calls[step])), None)
        if fault is None:
            return act()
        self.met.append(fault)
        self._unanswered = fault.following
        if fault.kind is Kind.REFUSED:
            raise BatchFailedError(f"{step}: nothing was done")
        if fault.kind is Kind.REQUEST_LOST:
            raise InjectedFaultError(f"{step}: the request was lost")
        if fault.kind in _FREEZING:
            self._on_freeze(fault.kind is Kind.FROZEN_LONG)
            return act()
        act()
        if fault.kind is Kind.REPEATED:
            return act()
        raise InjectedFaultError(f"{step}: the answer was lost")


_active = threading.local()


def target_call(step: str, act: Callable[[], _T]) -> _T:
    """Make a call to a sink's target, such as a file system or a database. Outside of a rehearsal nothing fails.

    :raises InjectedFaultError: when it gets no answer
    """
    seam: Seam | None = getattr(_active, "seam", None)
    if seam is None:
        return act()
    try:
        return seam.call(step, act)
    except BatchFailedError as error:
        raise InjectedFaultError(str(error)) from error


class _Faulty:
    """A committer, or a task's writer, behind a seam: each call that changes something can fail."""

    _CHANGING: Final = frozenset(
        {"claim", "begin", "write", "finish", "pre_commit", "commit", "abort", "settled", "forget"}
    )

    def __init__(self, inner: Any, seam: Seam) -> None:
        self._inner: Final = inner
        self._seam: Final = seam

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in self._CHANGING:
            return attribute
        return lambda *args: self._seam.call(f"sink.{name}", lambda: attribute(*args))

    def open_writer(self) -> OpenWriter:
        open_inner = self._inner.open_writer()
        return lambda attempt, task: cast(SinkWriter, _Faulty(open_inner(attempt, task), self._seam))


@dataclass
class World:
    """The state that outlives a run: the pipeline's ledger and Spark's checkpoint.

    :ivar commits: the ledger's commits, in order
    :ivar run: the newest run that has claimed
    :ivar done: batches that Spark has noted as done
    """

    commits: list[CommitRecord] = field(default_factory=list)
    run: int = 0
    done: int = 0


class _Session:
    """The producer session of a run, against the ledger in memory."""

    producer: Final = Producer(id=1, epoch=0)

    def __init__(self, run: _MemoryRun) -> None:
        self._run: Final = run
        self._record: CommitRecord | None = None

    def begin(self) -> None:
        self._record = None
        try:
            self._run.seam.call("ledger.begin", lambda: None)
        except InjectedFaultError as error:
            raise UnansweredError(str(error)) from error
        if self._run.is_superseded:
            raise ProducerLostError("a higher run has claimed")

    def write(self, *_: object, **__: object) -> int:
        return len(self._run.world.commits)

    def commit(self, give_up: Callable[[], bool]) -> None:
        """Commit what was written; any failure leaves the outcome unknown."""

        def act() -> None:
            if self._run.is_superseded:
                raise CommitUnknownError("a higher run has claimed")
            self._run.append()

        self._run.ask("ledger.commit", act, CommitUnknownError)

    def abort(self) -> None:
        self._run.ask("ledger.abort", lambda: None, ProducerLostError)


class _MemoryRun(Run):
    """A run's hold on a ledger in memory."""

    def __init__(self, world: World, seam: Seam) -> None:
        self.world: Final = world
        self.seam: Final = seam
        self.pending: CommitRecord | None = None
        self.pipeline = PIPELINE  # type: ignore[misc]
        self.options = RunOptions(config={}, token="t", version="v", transaction_timeout_milliseconds=60_000)  # type: ignore[misc]
        self.client = cast(WireClient, SimpleNamespace(admin=SimpleNamespace(describe_topics=lambda topics: [])))  # type: ignore[misc]
        self.sources = SourceClusters({}, {})  # type: ignore[misc]
        self.session = cast(TransactionSession, _Session(self))  # type: ignore[misc]
        self.number, self.guarantee, self.lost = 0, EXACTLY_ONCE, {}
        self._commits_read: int | None = None  # how many commits the ledger had at the last read

    @property
    def is_superseded(self) -> bool:
        return self.world.run > self.number

    @property
    @override
    def tail(self) -> LedgerTail:
        commits = self.world.commits[: self._commits_read]
        newest = commits[-1] if commits else None
        return LedgerTail(
            cluster_id="c", topic_id="t", end_offset=len(commits), commit=newest, commit_offset=len(commits) - 1
        )

    @property
    @override
    def lineage(self) -> Lineage:
        return Lineage(id="lineage")

    @override
    def start(self) -> None:
        def act() -> None:
            if self.number and self.is_superseded:
                raise FencedError(f"run {self.number} is superseded by run {self.world.run}")
            self.number = self.number or self.world.run + 1
            self.world.run, self._commits_read = self.number, len(self.world.commits)

        self.ask("ledger.claim", act, ClaimFailedError)

    def ask(self, step: str, act: Callable[[], object], failure: type[Exception]) -> None:
        """Make a call to the ledger; whatever its fault is, it fails in one way."""
        try:
            self.seam.call(step, act)
        except (InjectedFaultError, BatchFailedError) as error:
            raise failure(str(error)) from error

    @override
    def reclaim(self, give_up: Callable[[], bool] = lambda: False) -> None:
        for _ in range(_ATTEMPTS - 1):
            with suppress(ClaimFailedError):
                self.start()
                return
        self.start()

    @override
    def expired(self) -> Expired:
        return Expired(oldest=1)

    def append(self) -> None:
        if self.pending is None or self.pending.commit != len(self.world.commits) + 1:
            raise AssertionError(f"the ledger ends at {len(self.world.commits)}, and gets {self.pending}")
        self.world.commits.append(self.pending)

    @override
    def committed(self, record: CommitRecord, offset: int) -> None:
        self._commits_read = record.commit


class _Stage:
    """In place of the stage of a batch's tasks: takes the tasks' instructions."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self.batches: Final = batches
        self.properties: dict[str, str | None] = {}
        self.sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=self.properties.__setitem__))


class _Sinks(BatchTransaction):
    """The real order of commits, without a Kafka sink."""

    def __init__(self, run: _MemoryRun, sinks: SinkGroup, routes: SinkRoutes) -> None:
        options = TransactionOptions(definition=None, routes=routes)
        attempt = BatchAttempt(run, options, {}, cast(SequencerListener, None), sinks)
        super().__init__(attempt, _LocalTasks(attempt), lambda: False)
        self._memory: Final = run

    @override
    def pre_commit(self, started_milliseconds: int) -> CommitRecord:
        record = super().pre_commit(started_milliseconds)
        self._memory.pending = record
        return record


class _LocalTasks(TransactionalWriter):
    """The writer with tasks in this process."""

    def __init__(self, attempt: BatchAttempt) -> None:
        super().__init__(attempt)
        self._tasks: Final = attempt.others.tasks()

    @override
    def _run_job(self, stage: Any, *_: object, **__: object) -> list[Any]:
        (instructions,) = stage.properties.values() or (None,)
        answers = []
        try:
            for task, rows in enumerate(stage.batches):
                with Tee(self._tasks, instructions, task) as tee:
                    list(tee.passing(iter([rows])))
                    answers.append(tee.finish())
        except Exception as error:
            raise typed_errors.find(str(error)) or BatchFailedError(f"the job failed: {error}") from error
        self._attempt.others.collect_results(answers)
        return [{} for _ in answers]


#: Gives a task's rows of a commit, see ``SinkConformance.make_rows``.
MakeRows = Callable[[int, int], "pa.RecordBatch"]


class Rehearsal:
    """A pipeline of a few batches into one sink, with faults.

    :param sink: the sink under test
    :param folder: where the pipeline's home is
    :param make_rows: (commit, task) to rows
    """

    def __init__(self, sink: Sink, folder: Path, make_rows: MakeRows) -> None:
        self._sink: Final = sink
        self._folder: Final = folder
        self._make_rows: Final = make_rows
        self.world = World()

    @staticmethod
    def is_empty(commit: int) -> bool:
        """Tell whether a commit has no rows."""
        return commit == 3

    def run(self, faults: Iterable[Fault] = (), *, until: int = BATCHES) -> Seam:
        """Commit all batches, whatever happens; returns the seam.

        :param until: only so many batches
        :raises AssertionError: when it takes too many runs
        """
        seam = Seam(faults, on_freeze=lambda long: self._succeed(until if long else self.world.done))
        for _ in range(_RUNS_MAXIMUM):
            if self._live(seam, until):
                return seam
        raise AssertionError(f"{_RUNS_MAXIMUM} runs did not commit {until} batches")

    def entries(self) -> list[SinkEntry]:
        """Return the sink's entries in the pipeline's ledger."""
        return [SinkEntry.of(record, self._sink.name) for record in self.world.commits]

    def _succeed(self, batches: int) -> None:
        """Let a successor claim, and finish so many batches, while another run is frozen."""
        seam = Seam()
        with seam.active():  # else the successor's opens and reads meet the frozen run's faults
            if not self._live(seam, batches):
                raise AssertionError("a successor without faults did not finish")

    def _live(self, seam: Seam, batches: int) -> bool:
        """Live one run: a claim, and the batches that are left; false when it failed, or was superseded."""
        world, run = self.world, _MemoryRun(self.world, seam)
        first, share = world.done, Share(self._sink)
        committer = cast(SinkCommitter, _Faulty(self._sink.open(context_in(self._folder)), seam))
        with closing(SinkGroup(run.pipeline, {self._sink.name: committer})) as sinks:
            committer.expect_columns(columns_of(self._make_rows))
            transaction = _Sinks(run, sinks, SinkRoutes(kafka=None, others=(share,)))
            coordinator = CommitCoordinator(
                transaction,
                Callbacks(plan=self._plan, stop_reason=lambda: None, committed=lambda *_: None),
                max_batch_attempts=_ATTEMPTS,
                first_pause_seconds=0,
            )
            try:
                sinks.check(run.tail.commit, world.run, first + 1)
                run.start()
                sinks.claim(run.number, run.tail.commit, first + 1)
                while world.done < batches and not (run.is_superseded and seam.met):
                    self._process(coordinator, world.done, run)
            except ExactlyOnceError as error:
                if error.exit_code not in (1, FencedError.exit_code):
                    raise
                return False
            return not run.is_superseded

    def _process(self, coordinator: CommitCoordinator, number: int, run: _MemoryRun) -> None:
        """Act as Spark: call back, and note that the batch is done, unless a newer run has taken over."""
        coordinator.process(cast(Any, _Stage(self._rows(number + 1))), number)
        if not run.is_superseded:
            self.world.done = max(self.world.done, number + 1)

    def _plan(self, number: int) -> Batch:
        commits = self.world.commits
        header = {"batchWatermarkMs": 0, "batchTimestampMs": number}
        text = "\n".join(("v1", json.dumps(header), json.dumps({"events": {"0": 100 * (number + 1)}})))
        return Batch(
            lineage="lineage",
            number=number,
            offsets=parse_offsets(text),
            source={"events": {0: (100 * number, 100 * (number + 1))}},
            source_topic_ids={},
            recorded=commits[number] if number < len(commits) else None,
        )

    def _rows(self, commit: int) -> list[pa.RecordBatch]:
        """Return the tasks' rows as the query's plan gives them: a struct of the sink's columns and their digest."""
        import numpy as np
        import pyarrow as pa

        stage = []
        for task in range(TASKS):
            rows = self._make_rows(commit, task)
            rows = rows.slice(0, 0) if self.is_empty(commit) else rows
            # Equal sums in every batch: commits are distinguished by their number, not by their rows.
            digest = pa.array(np.arange(rows.num_rows, dtype=np.int64))
            struct = pa.StructArray.from_arrays([*rows.columns, digest], names=[*rows.schema.names, DIGEST_FIELD])
            stage.append(pa.RecordBatch.from_arrays([struct], names=[column_of(0)]))
        return stage


def context_in(folder: Path) -> SinkContext:
    """Return where a sink under test is used.

    :param folder: the pipeline's home lies in it
    """
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return SinkContext(pipeline=PIPELINE, home=home)


def columns_of(make_rows: MakeRows) -> StructType:
    """Return the columns of the rows, as Spark has them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(make_rows(1, 0).schema)


def single_faults(seam: Seam, *, following: Sequence[int] = (0,)) -> list[Fault]:
    """Return every fault at the first, middle and last of each kind of call, and at calls that only follow a failure.

    :param seam: of a run without faults
    :param following: how many calls after the one that fails, fail too
    """
    calls_to_fail = {step: {1, (calls + 1) // 2, calls} for step, calls in seam.calls.items()}
    for step in ("sink.claim", "sink.abort", "ledger.claim", "ledger.abort"):  # which another fault leads to
        calls_to_fail[step] = {1, 2}
    return [
        Fault(step=step, kind=kind, call=call, following=followers)
        for step, calls in sorted(calls_to_fail.items())
        for call in sorted(calls)
        for kind in Kind
        if kind is not Kind.REPEATED or step.startswith("storage.")  # whose clients repeat requests
        for followers in (following[:1] if kind in _FREEZING else following)
    ]


def doubts() -> list[tuple[Fault, Fault]]:
    """Return the faults that leave a commit in doubt, each with one of the claim that would settle it."""
    unanswered = (Kind.REQUEST_LOST, Kind.ANSWER_LOST)
    return [
        (Fault(step="sink.commit", kind=commit, call=2), Fault(step="sink.claim", kind=claim, call=2))
        for commit in unanswered
        for claim in unanswered
    ]
