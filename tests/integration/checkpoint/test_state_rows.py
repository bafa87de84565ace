"""What ``exactlyonce state show`` reads is what the function keeps, as the harness tells it."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.checkpoint.state import StateDirectory
from airflow_provider_exactlyonce.checkpoint.state_reader import read_state
from airflow_provider_exactlyonce.checkpoint.state_rows import StateRequest, StoreRows, read_rows
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.state import Context, KeyedHarness, KeyedProcessFunction
from airflow_provider_exactlyonce.streaming import key_by
from tests import commands
from tests.integration.streaming.keyed import test_keyed_stream as keyed
from tests.integration.streaming.keyed.test_keyed_stream import DELAY, Fading, Timed, events, run
from tests.unit.checkpoint import crafted
from tests.unit.state import functions

#: The last one is begun, and whether it is committed when the query is stopped nobody knows.
BATCHES = events(seed=11, batches=5)
LAST = len(BATCHES) - 2
Row = Mapping[str, Any]


class Stateless(KeyedProcessFunction[Any, Any]):
    output = "k STRING"

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        yield (value.k,)


@pytest.fixture(autouse=True, scope="module")
def pickled_by_value() -> Iterator[None]:
    """Workers can't import tests."""
    modules = (sys.modules[__name__], keyed, functions)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def timed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Give the home of a pipeline that has run a function with every kind of state over all batches."""
    home = Home(tmp_path_factory.mktemp("timed") / "home")
    folder = home.lineages / home.create("timed").id
    run(spark, folder, BATCHES, lambda frame: key_by(frame, "k").process(Timed()), until=len(BATCHES))
    return home


def checkpoint_of(home: Home) -> Path:
    lineage = home.current()
    assert lineage is not None
    return home.checkpoint(lineage.id)


def shown(spark: SparkSession, checkpoint: Path, batch: int, **request: Any) -> dict[str, StoreRows]:
    asked = StateRequest(**{"key": {}, "limit": 1000, **request})
    operators = StateDirectory(checkpoint).operators(batch)
    return {store.store: store for store in read_rows(spark, checkpoint, batch, operators, asked, state_format=2)}


def text(value: Any) -> Any:
    return str(value) if isinstance(value, Decimal) else value


def time(milliseconds: int) -> str:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).isoformat(timespec="milliseconds")


def plain(rows: Sequence[Row], *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in columns) for row in rows), key=str)


@pytest.mark.slow
def test_every_variable_and_every_timer_is_shown_as_of_any_batch(spark: SparkSession, timed: Home) -> None:
    harness = KeyedHarness(Timed(), "k", watermark_delay=DELAY)
    for batch, rows in enumerate(BATCHES[: LAST + 1]):
        harness.process(rows)
        if batch not in (1, LAST):
            continue
        stores = shown(spark, checkpoint_of(timed), batch)
        assert {name: store.kind for name, store in stores.items()} == {
            "count": "ValueState",
            "total": "ValueState",
            "average": "ValueState",
            "seen": "ListState",
            "by_value": "MapState",
            "timers": None,
        }
        keys = harness.keys()
        state = {
            name: {key: harness.state(name, key) for key in keys} for name in ("count", "total", "seen", "by_value")
        }
        for name in ("count", "total"):
            kept = [{"k": k, "value": text(value)} for (k,), value in state[name].items() if value is not None]
            assert plain(stores[name].rows, "k", "value") == plain(kept, "k", "value")
        both = {row["k"]: (row["total"], row["n"]) for row in stores["average"].rows}
        assert both == {k: (text(state["total"][k,]), n) for (k,), n in state["count"].items() if n}
        seen = [{"k": k, "value": value} for (k,), many in state["seen"].items() for value in many]
        assert plain(stores["seen"].rows, "k", "value") == plain(seen, "k", "value")
        entries = [(k, text(map_key), n) for (k,), held in state["by_value"].items() for map_key, n in held.items()]
        assert plain(stores["by_value"].rows, "k", "map key", "map value") == sorted(entries, key=str)
        timers = [(k, time(at)) for (k,) in keys for at in harness.timers(k)]
        assert plain(stores["timers"].rows, "k", "timer") == sorted(timers, key=str)
    assert min(len(entries), len(timers), len(seen)) > 5, "there is something to compare"


@pytest.mark.slow
def test_of_one_key_and_one_variable_as_many_rows_as_asked_for(spark: SparkSession, timed: Home) -> None:
    (seen,) = shown(spark, checkpoint_of(timed), LAST, store="seen", key={"k": "a"}, limit=3).values()
    assert ([row["k"] for row in seen.rows], seen.more) == (["a"] * 3, True)
    none = shown(spark, checkpoint_of(timed), LAST, operator="transformWithState", key={"k": "no such key"})
    assert {(len(store.rows), store.more) for store in none.values()} == {(0, False)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"operator": "1"}, r"no operator '1' with state; there are: 0 \(transformWithState"),
        ({"operator": "aggregate"}, "no operator 'aggregate'"),
        ({"store": "sum"}, "no store 'sum'; there are: .*by_value"),
        ({"key": {"uuid": "a"}}, "'uuid' is no column of the key; there are: k"),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    spark: SparkSession, timed: Home, request_: dict[str, Any], message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        shown(spark, checkpoint_of(timed), LAST, **request_)


@pytest.mark.slow
def test_values_with_a_time_to_live_say_when_they_go(spark: SparkSession, tmp_path: Path) -> None:
    ran = run(spark, tmp_path, BATCHES[:2], lambda frame: key_by(frame, "k").process(Fading()), until=2)
    stores = shown(spark, tmp_path / "checkpoint", 0)
    ends = time(ran.clocks[0][0] + 900)
    for name in ("value", "many", "named"):
        assert {row["expires"] for row in stores[name].rows} == {ends}
    expected = sorted(((row["k"], row["i"]) for row in BATCHES[0]), key=str)
    assert plain(stores["many"].rows, "k", "value") == expected


def totals(frame: DataFrame) -> DataFrame:
    windows = frame.groupBy("k", F.window("ts", "10 seconds"))
    return windows.agg(F.sum("v").alias("total"), F.sum("i").alias("ids"))


def matched(frame: DataFrame) -> DataFrame:
    other = frame.withColumnsRenamed({"k": "k2", "i": "i2", "v": "v2", "ts": "ts2"})
    return frame.join(other, F.expr("i = i2 AND ts = ts2"))


@pytest.mark.slow
def test_state_of_sparks_own_operators_is_shown(spark: SparkSession, tmp_path: Path) -> None:
    rows = BATCHES[0]
    run(spark, tmp_path / "totals", BATCHES[:2], totals, until=2, output_mode="update")
    (store,) = shown(spark, tmp_path / "totals" / "checkpoint", 0, operator="stateStoreSave").values()
    sums: dict[Any, list[Any]] = {}
    for row in rows:
        held = sums.setdefault((row["k"], int(row["ts"].timestamp() // 10 * 10)), [Decimal(0), 0])
        held[0] += row["v"] or 0
        held[1] += row["i"]
    windows = [(row["k"], dt.datetime.fromisoformat(row["window"]["start"]).timestamp()) for row in store.rows]
    assert dict(zip(windows, ((Decimal(r["sum"]), r["sum 2"]) for r in store.rows), strict=True)) == {
        key: tuple(held) for key, held in sums.items()
    }
    start = store.rows[0]["window"]["start"].replace("T", " ").removesuffix("+00:00")
    (of_window,) = shown(spark, tmp_path / "totals" / "checkpoint", 0, key={"window.start": start}).values()
    assert {row["window"]["start"] for row in of_window.rows} == {store.rows[0]["window"]["start"]}
    assert len(of_window.rows) < len(store.rows)

    run(spark, tmp_path / "seen", BATCHES[:2], lambda frame: frame.dropDuplicates(["k", "i"]), until=2)
    (store,) = shown(spark, tmp_path / "seen" / "checkpoint", 0).values()
    assert plain(store.rows, "k", "i") == sorted(((row["k"], row["i"]) for row in rows), key=str)

    run(spark, tmp_path / "join", BATCHES[:2], matched, until=2)
    sides = shown(spark, tmp_path / "join" / "checkpoint", 0)
    left = next(side for name, side in sides.items() if name in ("left", "left-keyWithIndexToValue"))
    values = [(row["i"], None if row["v"] is None else Decimal(row["v"])) for row in left.rows]
    assert dict(values) == {row["i"]: row["v"] for row in rows}


@pytest.mark.slow
def test_a_function_without_state_has_none_to_show(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, tmp_path, BATCHES[:2], lambda frame: key_by(frame, "k").process(Stateless()), until=2)
    with pytest.raises(RefusedError, match="keeps no state"):
        shown(spark, tmp_path / "checkpoint", 0)


@pytest.mark.slow
def test_the_command_shows_the_current_checkpoint_and_a_savepoint(
    spark: SparkSession, timed: Home, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(checkpoint_of(timed))
    offsets = checkpoint.offsets(1)
    assert offsets is not None
    record = replace(crafted.record(1), pipeline="timed", offsets=offsets.text)
    empty = Home(tmp_path / "home")
    empty.create("timed")
    savepoint = Savepoints(empty.savepoints).take(checkpoint, 1, record, None)
    state, errors = read_state(checkpoint.path, savepoint, spark)
    assert (len(state), errors) == (6, [])
    expected = {name: list(store.rows) for name, store in shown(spark, checkpoint.path, 1).items()}
    last = checkpoint.newest_commit()
    assert last in (LAST, LAST + 1)
    newest = shown(spark, checkpoint.path, last, store="count", key={"k": "b"})["count"].rows

    command = ["state", "show", "timed", "--home"]
    lines = commands.run_apart(*command, str(timed.path), "--store", "count", "--key", "k=b").out.splitlines()
    assert lines[0] == f"commit {last + 1}, batch {last}"
    assert lines[2:4] == ["operator 0, transformWithStateInPySparkExec: count (ValueState)", "k  value  partition"]
    assert lines[4].split() == ["b", *(str(newest[0][name]) for name in ("value", "partition"))]

    body = commands.run(*command, str(empty.path), "--savepoint", savepoint.id, "--limit", "1000", "--json").body
    assert (body["savepoint"], body["commit"], body["batch"]) == (savepoint.id, savepoint.commit, 1)
    rows_by_store = {store["store"]: store["rows"] for store in body["stores"]}
    assert {name: sorted(map(str, rows)) for name, rows in rows_by_store.items()} == {
        name: sorted(map(str, rows)) for name, rows in expected.items()
    }
    assert [entry.name for entry in empty.savepoints.iterdir()] == [savepoint.id], "its copy is gone"
    home = ["--home", str(empty.path)]
    for arguments, why in (
        (home, "has no checkpoint with a committed batch"),
        ([*home, "--key", "k"], "COLUMN=VALUE"),
        ([*home, "--limit", "0"], "at least 1"),
        ([*home, "--savepoint", "1-aa"], "no savepoint '1-aa'"),
        (["--home", str(timed.path), "--batch", "40"], "batch 40 is not, or no longer, in "),
    ):
        assert why in commands.run("state", "show", "timed", *arguments, code=RefusedError.exit_code).err
