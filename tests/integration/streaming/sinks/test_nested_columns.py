"""Maps, and structs in maps and arrays: readers get what Spark gave, and a digest knows no order of entries."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.job.table_rows import FilePart, rows
from airflow_provider_exactlyonce.streaming.sinks.row_digest import row_digest
from airflow_provider_exactlyonce.streaming.sinks.sink_routes import DIGEST_FIELD, SinkRoutes, column_of
from airflow_provider_exactlyonce.streaming.sinks.spi import Share
from airflow_provider_exactlyonce.tables.positions import Position
from tests.iceberg_reader import newest_metadata
from tests.integration.streaming.sinks.compacting_run import DELTA, ICEBERG, lake_of
from tests.integration.streaming.sinks.iceberg.lake import IcebergLake
from tests.integration.streaming.sinks.lake import COLUMNS, UTC, Lake, Live

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON, DAY = datetime.datetime(2024, 2, 29, 12, 0, 0, 1), datetime.date(1582, 10, 15)
MAPS = (
    "id BIGINT, m MAP<STRING, BIGINT>, deep MAP<INT, MAP<STRING, ARRAY<MAP<DATE, DECIMAL(12,2)>>>>, "
    "s STRUCT<of: MAP<STRING, STRUCT<n: INT>>, n: INT>, l ARRAY<MAP<BINARY, BOOLEAN>>, "
    "keyed MAP<STRUCT<a: INT, b: STRING>, DOUBLE>, times MAP<TIMESTAMP, TIMESTAMP_NTZ>, at TIMESTAMP_NTZ, "
    "named MAP<STRING, STRUCT<n: INT, l: ARRAY<STRUCT<n: INT>>>>, list ARRAY<STRUCT<n: INT>>"
)
GIVEN: list[tuple[Any, ...]] = [
    (
        1,
        {"b": 1, "a": None, "": 2**63 - 1},
        {7: {"x": [{DAY: Decimal("1.50")}, {}, None], "y": None}, -7: {}, 0: None},
        ({"k": (1,), "n": (None,), "none": None}, 1),
        [{b"\xff": True, b"": None}, {}, None],
        {(1, "a"): 0.5, (None, None): None},
        {NOON.replace(tzinfo=UTC): NOON},
        NOON,
        {"a": (1, [(1,), None]), "b": (None, None), "c": None, "d": (None, [])},
        [(1,), (None,), None],
    ),
    (2, *(None,) * 9),
    (3, {}, {}, ({}, None), [], {}, {}, None, {}, []),
    (4, {"a": 0}, {1: {"x": []}}, (None, None), [{}], {(1, "a"): None, (1, "b"): -0.5}, {}, NOON, None, []),
]


@pytest.fixture
def nested(spark: SparkSession) -> T.StructType:
    """Give the columns of :data:`GIVEN`; only a session reads their text."""
    return spark.createDataFrame([], MAPS).schema


@pytest.fixture(params=[DELTA, ICEBERG])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return lake_of(request.param, tmp_path / "lake")


def plain(value: Any, kind: T.DataType) -> Any:
    """Return a value as it is compared, whatever its reader makes of maps and structs."""
    if value is None:
        return None
    if isinstance(kind, T.MapType):
        pairs = value.items() if isinstance(value, Mapping) else value
        entries = [(pair["key"], pair["value"]) if isinstance(pair, Mapping) else pair for pair in pairs]
        return sorted([(plain(key, kind.keyType), plain(of, kind.valueType)) for key, of in entries], key=repr)
    if isinstance(kind, T.ArrayType):
        return [plain(element, kind.elementType) for element in value]
    if isinstance(kind, T.StructType):
        parts = [value[name] for name in kind.names] if isinstance(value, Mapping) else value
        return tuple(plain(part, field.dataType) for part, field in zip(parts, kind.fields, strict=True))
    return value


def plain_rows(found: Iterable[Any], columns: T.StructType) -> list[Any]:
    return sorted((plain(row, columns) for row in found), key=lambda row: int(row[0]))


def commit(live: Live, spark: SparkSession, given: Sequence[tuple[Any, ...]], columns: str) -> None:
    """Commit rows as a task gets them from Spark."""
    whole = SinkRoutes(kafka=None, others=[Share(live.sink)]).of(spark.createDataFrame(given, columns)).toArrow()
    attempt = live.begin()
    with closing(live.open_writer(attempt, 0)) as writer:
        for batch in whole.to_batches():
            told = pa.RecordBatch.from_struct_array(batch[column_of(0)])
            writer.write(told.drop_columns([DIGEST_FIELD]))
        live.committer.pre_commit([writer.finish()])
    live.decide(live.entry(len(given)))


@pytest.mark.filterwarnings("ignore:Iceberg scan planning")  # polars could plan faster with a package more
def test_maps_come_back_as_spark_gave_them_by_each_reader(
    lake: Lake, tmp_path: Path, spark: SparkSession, nested: T.StructType
) -> None:
    commit(Live(lake.sink(), tmp_path, columns=nested), spark, GIVEN, MAPS)
    expected = plain_rows(GIVEN, nested)
    assert plain_rows(lake.read(), nested) == expected
    if isinstance(lake, IcebergLake):
        by_polars = polars.scan_iceberg(newest_metadata(lake.folder / "catalog.db", lake.name))
    else:  # pyiceberg reads an array or a map of structs that is null as an empty one
        assert plain_rows(lake.read_by_library(), nested) == expected
        by_polars = polars.scan_delta(str(lake.path))  # type: ignore[attr-defined]
    assert plain_rows(by_polars.collect().to_arrow().to_pylist(), nested) == expected
    log = lake.log()
    files = [file for version in log.versions(Position(0)) for file in version.files]
    read = (rows(log.name, FilePart(file, 0, 1), log.store, nested, log.field_ids()) for file in files)
    assert plain_rows((row for batches in read for batch in batches for row in batch.to_pylist()), nested) == expected


def test_what_an_upsert_copies_stays_as_it_was(
    lake: Lake, tmp_path: Path, spark: SparkSession, nested: T.StructType
) -> None:
    live = Live(lake.sink(mode="upsert", key="id"), tmp_path, columns=nested)
    commit(live, spark, GIVEN, MAPS)
    anew = (1, *GIVEN[3][1:])
    commit(live, spark, [anew], MAPS)
    assert plain_rows(lake.read(), nested) == plain_rows([anew, *GIVEN[1:]], nested)


def test_what_is_written_together_stays_as_it_was(
    lake: Lake, tmp_path: Path, spark: SparkSession, nested: T.StructType
) -> None:
    live = Live(lake.sink(compact_every=len(GIVEN)), tmp_path, columns=nested)
    for row in GIVEN:
        commit(live, spark, [row], MAPS)
    assert len(lake.current_files()) == 1
    assert plain_rows(lake.read(), nested) == plain_rows(GIVEN, nested)


def test_a_map_is_added_to_a_table(lake: Lake, tmp_path: Path, spark: SparkSession) -> None:
    sink = lake.sink(schema="evolve")
    commit(Live(sink, tmp_path), spark, [(1, "a")], "id BIGINT, k STRING")
    wider = T.StructType(
        [*COLUMNS, T.StructField("m", T.MapType(T.StringType(), T.MapType(T.LongType(), T.DateType())))]
    )
    live = Live(sink, tmp_path, run=2, columns=wider)
    given = [(2, "b", {"x": {1: DAY, 2: None}, "y": None}), (3, "c", {}), (4, "d", None)]
    commit(live, spark, given, "id BIGINT, k STRING, m MAP<STRING, MAP<BIGINT, DATE>>")
    expected = plain_rows([(1, "a", None), *given], wider)
    assert plain_rows(lake.read(), wider) == expected
    assert plain_rows(lake.read_by_library(), wider) == expected


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"mode": "upsert", "key": "m"}, "column 'm' of the key is map<string,bigint>"),
        ({"mode": "upsert", "key": "id", "order": "m"}, "order='m' is map<string,bigint>"),
        ({"partition_by": "m"}, "'m'.*map<string,"),
    ],
)
def test_a_map_names_no_row_and_no_partition(lake: Lake, declared: Mapping[str, Any], said: str) -> None:
    columns = T.StructType().add("id", T.LongType()).add("m", T.MapType(T.StringType(), T.LongType()))
    with pytest.raises(RefusedError, match=said):
        lake.sink(**declared).check_columns(columns)


def digests(spark: SparkSession, kind: str, *values: str) -> list[int]:
    """Return the digests of rows with one column.

    :param values: in Spark SQL
    """
    frame = spark.sql(" UNION ALL ".join(f"SELECT CAST({value} AS {kind}) AS v" for value in values))
    return [row[0] for row in frame.select(row_digest([frame["v"]], [frame.schema["v"].dataType])).collect()]


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("MAP<STRING, INT>", "map('a', 1, 'b', NULL)", "map('b', NULL, 'a', 1)"),
        ("MAP<INT, MAP<INT, INT>>", "map(1, map(1, 2, 3, 4), 2, NULL)", "map(2, NULL, 1, map(3, 4, 1, 2))"),
        ("ARRAY<MAP<DOUBLE, INT>>", "array(map(0.5, 1, -1, 2))", "array(map(-1, 2, 0.5, 1))"),
        ("STRUCT<m: MAP<BINARY, DATE>>", "struct(map('x', NULL, '', NULL))", "struct(map('', NULL, 'x', NULL))"),
        ("MAP<ARRAY<INT>, INT>", "map(array(2), 1, array(1, 2), 2)", "map(array(1, 2), 2, array(2), 1)"),
        ("MAP<STRUCT<a: INT>, STRING>", "map(struct(2), '', struct(1), NULL)", "map(struct(1), NULL, struct(2), '')"),
    ],
)
def test_the_order_of_entries_makes_no_other_digest(spark: SparkSession, kind: str, one: str, other: str) -> None:
    first, second = digests(spark, kind, one, other)
    assert first == second


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        # Spark leaves out nulls: by keys and values alone the last two would be alike.
        (
            "MAP<STRING, STRING>",
            ["NULL", "map()", "map('a', NULL)", "map('a', NULL, 'b', 'c')", "map('a', 'b', 'c', NULL)"],
        ),
        ("MAP<INT, MAP<INT, INT>>", ["map(1, map(2, 3))", "map(1, map(3, 2))", "map(1, NULL)", "map(1, map())"]),
        ("MAP<INT, INT>", ["map(1, 2, 3, 4)", "map(1, 4, 3, 2)", "map(1, 2)", "map(1, 3, 2, 4)"]),
        ("STRUCT<a: MAP<INT, INT>, b: INT>", ["struct(map(1, 2), 3)", "struct(map(1, 3), 2)", "struct(NULL, 3)"]),
    ],
)
def test_other_entries_make_another_digest(spark: SparkSession, kind: str, values: list[str]) -> None:
    assert len(set(digests(spark, kind, *values))) == len(values)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("BIGINT", "7"),
        ("ARRAY<INT>", "array(1, NULL)"),
        ("STRUCT<a: INT, b: ARRAY<STRUCT<c: STRING>>>", "struct(1, array(struct(2)))"),
    ],
)
def test_without_a_map_a_digest_is_the_one_that_ledgers_have(spark: SparkSession, kind: str, value: str) -> None:
    [digest] = digests(spark, kind, value)
    [[plainly]] = spark.sql(f"SELECT xxhash64(CAST({value} AS {kind}), false)").collect()
    assert digest == plainly
