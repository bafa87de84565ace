"""Backfills: a range is run again beside its pipeline, from the state that it began with or from an empty one."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce import failpoints, moments
from airflow_provider_exactlyonce.audit.check import AuditOptions, audit
from airflow_provider_exactlyonce.audit.findings import Report
from airflow_provider_exactlyonce.backfill import workspace
from airflow_provider_exactlyonce.backfill.request import BackfillRequest
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.failpoints import BACKFILL_NAMES, NAMES, RESTORE_NAMES
from airflow_provider_exactlyonce.kafka.digest import BACKFILL_HEADER
from airflow_provider_exactlyonce.kafka.stable_offsets import StableOffsets
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord, backfill_pipeline, ledger_topic
from airflow_provider_exactlyonce.streaming.driver.backfill_driver import BackfillDriver
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from tests.integration.streaming.harness import read_committed
from tests.integration.streaming.replay.harness import Bench, Case
from tests.integration.streaming.replay.shapes import SHAPES
from tests.waiting import eventually

ROUNDS = 8
SAVED = 5


def backfill(
    case: Case,
    *,
    expected: int = 0,
    accept_nondeterminism: bool = False,
    version: Mapping[str, Any] | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """Run a backfill in this process; returns its result.

    :param version: options of the sink that make the job another version
    """
    home = workspace.make(case.home, case.name, BackfillRequest.parse(**asked))
    (home.path / "result.json").unlink(missing_ok=True)
    options = DriverOptions(
        home=home,
        config=dict(case.config),
        token=str(uuid.uuid4()),
        backfill=True,
        accept_nondeterminism=accept_nondeterminism,
    )
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    code = BackfillDriver(case.pipeline(**(version or {})), options).run()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    last_status = status.read(home.status)
    assert code == expected, last_status and last_status.error
    return workspace.result_of(home) or {}


def rows(case: Case, topic: str) -> Counter[str]:
    """Return a topic's rows as an independent reader sees them."""
    return Counter((record.value or b"").decode() for record in read_committed(case.config, topic))


def written(case: Case, commits: list[CommitRecord]) -> Counter[str]:
    """Return the rows that some commits wrote, by the ranges of their records."""
    counts: Counter[str] = Counter()
    ranges = [
        (topic, partition, span.first, span.last)
        for record in commits
        for topic, of in record.sink.items()
        for partition, span in of.items()
    ]
    for topic in {span[0] for span in ranges}:
        for record in read_committed(case.config, topic):
            if any((topic, record.partition) == span[:2] and span[2] <= record.offset <= span[3] for span in ranges):
                counts[(record.value or b"").decode()] += 1
    return counts


def delivered(case: Case, first: int, last: int) -> Counter[str]:
    return written(case, [record for record in case.commits() if first <= record.commit <= last])


def backfilled(case: Case) -> list[CommitRecord]:
    """Return what the ledger of the backfills has."""
    with LedgerReader(case.config, backfill_pipeline(case.name)) as reader:
        return list(reader.commits())


def prepared(bench: Bench, shape: str, *, rounds: int = ROUNDS, saved: int = SAVED) -> Case:
    """Make a pipeline that has run, a batch a round, with a savepoint on the way."""
    case = bench.case(shape, bench.topics(shape), limit=100)
    feed = bench.input(rows=100)
    for _ in range(rounds):
        feed.send(case.topics)
    case.run(stop_at=saved)
    case.save()
    case.run()
    return case


@pytest.fixture(scope="module")
def windowed(
    jvm: None,
    tmp_path_factory: pytest.TempPathFactory,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
) -> Case:
    """Give a pipeline that counts in windows of event time; tests leave its commits as they are."""
    return prepared(Bench(kafka_config, tmp_path_factory.mktemp("windowed"), make_topic), "windowed")


def audited(case: Case) -> Report:
    return audit(case.config, case.name, AuditOptions(patience_seconds=10))


@pytest.mark.slow
def test_a_range_of_commits_gives_another_topic_what_was_delivered_and_gives_it_once(
    windowed: Case, make_topic: Callable[..., str]
) -> None:
    case, other = windowed, make_topic(partitions=3)
    newest = case.tail().place.commit
    first, last = SAVED + 3, newest - 1
    before = rows(case, case.sink)
    result = backfill(case, commits=f"{first}..{last}", output=f"topic={other}")
    assert rows(case, other) == delivered(case, first, last)
    assert (result["rows"], result["batches"]) == (sum(rows(case, other).values()), last - first + 1)
    assert result["rows"] > 0
    assert result["suppressed_batches"] == 2, "what lies between the savepoint and the range"
    assert backfill(case, commits=f"{first}..{last}", output=f"topic={other}") == result
    assert rows(case, other) == delivered(case, first, last), "the same range is written once"
    assert rows(case, case.sink) == before
    assert case.tail().place.commit == newest, "the pipeline's ledger is as it was"


@pytest.mark.slow
def test_a_range_before_every_savepoint_is_run_from_the_beginning(
    windowed: Case, make_topic: Callable[..., str]
) -> None:
    other = make_topic(partitions=3)
    result = backfill(windowed, commits="2..4", output=f"topic={other}")
    assert (result["savepoint"], result["suppressed_batches"]) == (None, 1)
    assert rows(windowed, other) == delivered(windowed, 2, 4)


@pytest.mark.slow
def test_a_range_that_is_compared_writes_nothing_and_finds_what_differs(windowed: Case) -> None:
    case = windowed
    last = case.tail().place.commit
    before = rows(case, case.sink)
    result = backfill(case, commits=f"{SAVED + 1}..{last}")
    assert (result["clean"], result["compared"], result["rows"]) == (True, last - SAVED, 0)
    assert rows(case, case.sink) == before
    other = replace(case, shape=replace(case.shape, function=miscounted))
    wrong = backfill(other, commits=f"{SAVED + 1}..{last}")
    assert (wrong["clean"], wrong["version"] != result["version"]) == (False, True)
    named = {violation["commit"] for violation in wrong["found"]}
    late = [record.commit for record in case.commits() if record.commit > SAVED]
    wanted = {commit for commit in late if any('"k3"' in row for row in delivered(case, commit, commit))}
    assert named == wanted != set()


def miscounted(events: DataFrame) -> DataFrame:
    return SHAPES["windowed"].function(events).withColumn("n", F.expr("IF(k = 'k3', n + 1, n)"))


@pytest.mark.slow
def test_what_is_written_into_the_sink_again_is_marked_and_not_doubled_to_an_audit(bench: Bench) -> None:
    case = prepared(bench, "windowed", rounds=5, saved=2)
    last = case.tail().place.commit
    before, ledger = rows(case, case.sink), case.commits()
    wanted = delivered(case, 4, last)
    result = backfill(case, commits=f"4..{last}", output="reemit")
    assert rows(case, case.sink) == before + wanted
    assert backfill(case, commits=f"4..{last}", output="reemit") == result
    assert rows(case, case.sink) == before + wanted, "the same range is written once"
    marks = Counter(dict(record.headers).get(BACKFILL_HEADER) for record in read_committed(case.config, case.sink))
    assert marks == {None: sum(before.values()), result["backfill"].encode(): sum(wanted.values())}
    records = backfilled(case)
    assert [record.backfill for record in records] == [result["backfill"]] * (last - 3 + 1)
    assert [record.digest for record in records[:-1]] == [record.digest for record in ledger if record.commit >= 4]
    report = audited(case)
    assert (report.found, report.backfills, report.backfilled_rows) == ((), 1, sum(wanted.values()))
    assert report.rows == sum(before.values())

    # The pipeline goes on, and what is written is told apart where both write to one partition.
    feed = bench.input(rows=100)
    feed.rounds = 20
    feed.send(case.topics)
    case.run()
    assert audited(case).found == ()
    copied = next(record for record in read_committed(case.config, case.sink) if record.headers)
    producer = Producer(dict(case.config))
    producer.produce(case.sink, copied.value, copied.key, copied.partition, headers=list(copied.headers))
    assert producer.flush(30) == 0
    [doubled] = audited(case).found
    assert (doubled.invariant, "not this pipeline's" in doubled.message) == ("I2", True)


@pytest.mark.slow
def test_a_range_may_begin_and_end_anywhere_and_ranges_that_follow_each_other_have_each_row_once(
    windowed: Case, make_topic: Callable[..., str]
) -> None:
    case, other = windowed, make_topic(partitions=3)
    topic = case.topics[""]
    bounds = [{0: 0, 1: 0}, {0: 111, 1: 180}, {0: 266, 1: 205}, source_ends(case)]
    for start, end in itertools.pairwise(bounds):
        span = {topic: {part: [start[part], end[part]] for part in start}}
        result = backfill(case, offsets=span, output=f"topic={other}")
        assert result["records"] == sum(end.values()) - sum(start.values())
    given = [json.loads(row) for row in rows(case, other).elements()]
    windows = Counter((row["start"], row["k"]) for row in given)
    assert set(windows.values()) == {1}, "no window is in two ranges"
    whole = {(row["start"], row["k"]) for row in map(json.loads, rows(case, case.sink))}
    assert whole <= set(windows), "and none is in neither"


def source_ends(case: Case) -> dict[int, int]:
    [ranges] = case.commits()[-1].source.values()
    return {partition: end for partition, (_, end) in ranges.items()}


@pytest.mark.slow
def test_ranges_of_the_watermark_follow_each_other(windowed: Case) -> None:
    commits = [record for record in windowed.commits() if record.watermark]
    marks = [moments.text(commits[number].watermark) for number in (0, len(commits) // 2, len(commits) - 1)]
    spans = [backfill(windowed, watermark=f"{first}..{last}")["commits"] for first, last in itertools.pairwise(marks)]
    assert spans[0][1] + 1 == spans[1][0]
    reached = next(record.commit for record in windowed.commits() if moments.text(record.watermark) == marks[2])
    assert spans[1][1] == reached
    result = backfill(windowed, expected=64, watermark=f"{marks[2]}..2200-01-01T00:00:00")
    assert result == {}
    home = workspace.make(
        windowed.home, windowed.name, BackfillRequest.parse(watermark=f"{marks[2]}..2200-01-01T00:00:00")
    )
    error = status.read(home.status).error  # type: ignore[union-attr]
    assert error is not None
    assert "has not reached 2200-01-01T00:00:00+00:00" in error.message


@pytest.mark.slow
def test_an_empty_state_knows_what_the_warm_up_has_seen(bench: Bench) -> None:
    """First appearances only: what the warm-up has seen is no first appearance."""
    case, other, bare = prepared(bench, "update", rounds=5, saved=2), bench.make_topic(), bench.make_topic()
    last = case.tail().place.commit
    backfill(case, commits=f"3..{last}", state="empty", output=f"topic={bare}")
    result = backfill(case, commits=f"3..{last}", state="empty", warm_up=10, output=f"topic={other}")
    assert result["suppressed_batches"] >= 2

    def totals(topic: str) -> dict[str, int]:
        newest: dict[str, int] = {}
        for row in map(json.loads, rows(case, topic)):
            newest[row["k"]] = max(newest.get(row["k"], 0), row["n"])
        return newest

    assert totals(other) == totals(case.sink), "as if it had run from the beginning"
    assert sum(totals(bare).values()) == 300, "the range alone"


class KilledError(Exception):
    """Stands for the death of the driver."""


def killed_at(name: str, times: int, case: Case, monkeypatch: pytest.MonkeyPatch, **asked: Any) -> None:
    """Run a backfill that dies when it has reached a step so many times."""
    left = [times]

    def reach(step: str) -> None:
        left[0] -= step == name
        if step == name and left[0] == 0:
            raise KilledError(name)

    with monkeypatch.context() as armed:
        armed.setattr(failpoints, "reach", reach)
        assert backfill(case, expected=1, **asked) == {}, name


def home_of(case: Case, **asked: Any) -> Home:
    return workspace.make(case.home, case.name, BackfillRequest.parse(**asked))


def source_of(case: Case, first: int, last: int) -> dict[str, dict[str, list[int]]]:
    """Return what some commits have read, as offsets of a request."""
    commits = {record.commit: record for record in case.commits()}
    return {
        topic: {str(part): [start, commits[last].source[topic][part][1]] for part, (start, _) in of.items()}
        for topic, of in commits[first].source.items()
    }


@pytest.mark.slow
def test_what_a_killed_backfill_has_written_is_not_repeated_under_other_words_or_from_a_lost_home(
    windowed: Case, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, other = windowed, make_topic(partitions=3)
    newest = case.tail().place.commit
    first, output = SAVED + 1, {"output": f"topic={other}"}
    words: dict[str, Any] = {"commits": f"{first}..{newest}", **output}
    killed_at("after-commit", 1, case, monkeypatch, **words)
    began = rows(case, other)
    assert Counter() < began < delivered(case, first, newest)

    # The same range in other words, which dies too.
    offsets: dict[str, Any] = {"offsets": source_of(case, first, newest), **output}
    killed_at("after-commit", 1, case, monkeypatch, **offsets)
    assert began < rows(case, other) < delivered(case, first, newest)

    shutil.rmtree(home_of(case, **words).path)  # and the home of the first is lost
    result = backfill(case, **words)
    assert rows(case, other) == delivered(case, first, newest)
    assert result["rows"] == sum(rows(case, other).values())
    assert {**backfill(case, **offsets)} == result, "it is done, whoever asks"
    shutil.rmtree(case.home.path / "backfills")
    assert backfill(case, **offsets) == result
    assert rows(case, other) == delivered(case, first, newest)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost",
    ["commits", "torn", "steps", "lineage", "older copy"],
)
def test_a_backfill_whose_files_a_host_has_lost_goes_on_and_has_each_row_once(
    windowed: Case, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch, lost: str, tmp_path: Path
) -> None:
    case, other = windowed, make_topic(partitions=3)
    newest = case.tail().place.commit
    asked: dict[str, Any] = {"commits": f"{SAVED + 2}..{newest}", "output": f"topic={other}"}
    home = home_of(case, **asked)
    killed_at("backfill-step", 2, case, monkeypatch, **asked)
    shutil.copytree(home.path, tmp_path / "copy")
    killed_at("backfill-step", 3, case, monkeypatch, **asked)
    lineage = home.current()
    assert lineage is not None
    checkpoint = Checkpoint(home.checkpoint(lineage.id))
    last = checkpoint.batches("commits")[-1]
    if lost == "commits":
        for batch in (last, last - 1):
            checkpoint.removal("commits", batch)()
        checkpoint.removal("offsets", last + 1)()
    elif lost == "torn":
        (checkpoint.path / "commits" / str(last)).write_text("")
        (checkpoint.path / "offsets" / str(last)).write_text("")
    elif lost == "steps":
        (checkpoint.path.parent / "steps.json").unlink()
    elif lost == "lineage":
        (checkpoint.path.parent / "lineage.json").write_text("")
    else:
        shutil.rmtree(home.path)
        shutil.copytree(tmp_path / "copy", home.path)
    result = backfill(case, **asked)
    assert rows(case, other) == delivered(case, SAVED + 2, newest)
    assert result["rows"] == sum(rows(case, other).values())
    assert audited(case).found == ()


@pytest.mark.slow
def test_a_range_that_the_pipeline_reads_while_its_backfill_is_dead_is_cut_as_it_was(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written is found again by its batches: commits of since then must not move them."""
    case, other = bench.case("stateless", bench.topics("stateless"), limit=100), bench.make_topic()
    feed = bench.input(rows=100)
    feed.send(case.topics)
    case.run()
    for _ in range(3):
        feed.send(case.topics)
    [topic] = case.topics.values()
    ends = {str(part): [0, end] for (_, part), end in StableOffsets(case.config).last_stable(places(case)).items()}
    asked: dict[str, Any] = {"offsets": {topic: ends}, "output": f"topic={other}"}
    killed_at("backfill-step", 2, case, monkeypatch, **asked)
    for _ in range(2):
        feed.send(case.topics)
    case.run(limit=None)  # another version: one commit has the rest of the range, and more
    result = backfill(case, **asked)
    assert result["records"] == sum(end for _, end in ends.values()) == 400
    ids = Counter(json.loads(row)["id"] for row in rows(case, other).elements())
    assert (len(ids), set(ids.values())) == (400, {1})


def places(case: Case) -> list[tuple[str, int]]:
    return StableOffsets(case.config).partitions(list(case.topics.values()))


@pytest.mark.slow
def test_a_backfill_is_refused_when_its_ledger_or_its_topic_has_lost_what_was_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, other, third = prepared(bench, "stateless", rounds=4, saved=2), bench.make_topic(), bench.make_topic()
    asked: dict[str, Any] = {"commits": "3..4", "output": f"topic={other}"}
    killed_at("backfill-step", 1, case, monkeypatch, **asked)
    admin = AdminClient(dict(case.config))
    admin.delete_topics([other])[other].result(30)
    eventually(lambda: other not in admin.list_topics(timeout=10).topics, "it is gone")
    admin.create_topics([NewTopic(other, 1, 1)])[other].result(30)
    assert backfill(case, expected=64, **asked) == {}
    assert "was recreated since backfill" in refusal(case, **asked)
    assert rows(case, other) == Counter()

    ledger = ledger_topic(backfill_pipeline(case.name))
    admin.delete_topics([ledger])[ledger].result(30)
    eventually(lambda: ledger not in admin.list_topics(timeout=10).topics, "it is gone")
    again: dict[str, Any] = {"commits": "3..4", "output": f"topic={third}"}
    assert backfill(case, expected=64, **again) == {}
    assert "what was written would be written again" in refusal(case, **again)
    assert rows(case, third) == Counter()


def refusal(case: Case, **asked: Any) -> str:
    error = status.read(home_of(case, **asked).status).error  # type: ignore[union-attr]
    return error.message if error is not None else ""


DEATHS = [
    *((name, 1) for name in (*RESTORE_NAMES[:2], *BACKFILL_NAMES[:2])),
    *((name, 1) for name in NAMES if name != "during-send"),
    (BACKFILL_NAMES[1], 3),
    (BACKFILL_NAMES[2], 1),
]


@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param(
            [death for death in DEATHS if death[0] in ("restore-copied", "after-commit", "backfill-done")], id="three"
        ),
        pytest.param(DEATHS, id="all", marks=pytest.mark.slow),
    ],
)
def test_a_backfill_that_dies_at_a_step_goes_on_and_has_each_row_once(
    windowed: Case, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch, deaths: list[tuple[str, int]]
) -> None:
    case, other = windowed, make_topic(partitions=3)
    newest = case.tail().place.commit
    asked: dict[str, Any] = {"commits": f"{SAVED + 2}..{newest}", "output": f"topic={other}"}
    for name, times in deaths:
        killed_at(name, times, case, monkeypatch, **asked)
        between = rows(case, other)
        assert between <= delivered(case, SAVED + 2, newest), name
        if name == "after-commit":  # another one has its turn
            backfill(case, commits="2..2", output=f"topic={make_topic(partitions=1)}")
    result = backfill(case, **asked)
    assert rows(case, other) == delivered(case, SAVED + 2, newest)
    assert result["rows"] == sum(rows(case, other).values())
    records = [record for record in backfilled(case) if record.backfill == result["backfill"]]
    assert [record.result is not None for record in records] == [False] * (len(records) - 1) + [True]
    assert audited(case).found == ()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "windowed"])
def test_every_kind_of_query_gives_again_what_it_gave(bench: Bench, shape: str) -> None:
    case, other = prepared(bench, shape, rounds=5, saved=2), bench.make_topic(partitions=3)
    newest = case.tail().place.commit
    result = backfill(case, commits=f"2..{newest}")
    assert (result["clean"], result["compared"]) == (True, newest - 1)
    backfill(case, commits=f"4..{newest}", output=f"topic={other}")
    assert rows(case, other) == delivered(case, 4, newest)
    assert audited(case).found == ()
