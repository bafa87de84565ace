"""What OpenLineage is told: from a real ledger, as its real client writes it down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.uuid import generate_new_uuid

from airflow_provider_exactlyonce.control import json_store, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import DriverState, Status, TableStatus
from airflow_provider_exactlyonce.hooks import lineage
from airflow_provider_exactlyonce.ledger.records import KAFKA, OtherSink
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.operators.backfill import BackfillPipelineOperator
from airflow_provider_exactlyonce.operators.streaming import StreamingPipelineOperator
from airflow_provider_exactlyonce.operators.upgrade import UpgradePipelineOperator
from tests.integration.ledger.crafted import CraftedPipeline, rows_of
from tests.ledger_records import commit_record

COMMITS = 90
FIRST = 71  # of the task; far enough from the end for a second window
PARTITIONS = 2


@pytest.fixture(scope="module")
def pipeline(kafka_config: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[CraftedPipeline]:
    """Give a pipeline that has made a commit per second, and rows in every other."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(dict(kafka_config))
    admin.create_topics([NewTopic("lineage.sink", PARTITIONS)])["lineage.sink"].result(30)
    with CraftedPipeline(kafka_config, "lineage", "lineage.sink") as made:
        made.claim()
        for number in range(1, COMMITS + 1):
            made.session.begin()
            rows = rows_of(number, PARTITIONS) if number % 2 else {}
            table = {"table": OtherSink(rows=number, digest=0, dataset=("s3://lake", "shop/orders"))}
            facts: dict[str, Any] = {
                "primary": KAFKA,
                "others": table,
                "earlier_sink_topics": {"lineage.sink": ("id", number)},
            }
            made.end(made.record(made.append(rows), committed=number * 1000, watermark=number * 10, **facts))
        yield made


def task(pipeline: CraftedPipeline, folder: Path, monkeypatch: pytest.MonkeyPatch) -> StreamingPipelineOperator:
    Home(folder / "home").create("lineage")
    connection = {"conn_type": "kafka", "extra": pipeline.config}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
    return StreamingPipelineOperator(task_id="stream", application="job.py", checkpoint=str(folder / "home"))


def emitted(facets: OperatorLineage[Any, Any], folder: Path) -> dict[str, Any]:
    """Send it with OpenLineage's client; gives the event as a consumer would read it."""
    file = folder / "events.json"
    client = OpenLineageClient(transport=FileTransport(FileConfig(log_file_path=str(file), append=True)))
    client.emit(
        RunEvent(
            eventType=RunState.COMPLETE,
            eventTime=datetime.now(UTC).isoformat(),
            run=Run(runId=str(generate_new_uuid()), facets=facets.run_facets),
            job=Job(namespace="tests", name="shop.stream"),
            inputs=facets.inputs,
            outputs=facets.outputs,
        )
    )
    [line] = file.read_text().splitlines()
    event = json.loads(line)
    assert isinstance(event, dict)
    return event


def test_a_task_that_is_done_tells_the_offsets_that_were_committed_meanwhile(
    pipeline: CraftedPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = datetime.fromtimestamp(FIRST, UTC)
    operator = task(pipeline, tmp_path, monkeypatch)
    event = emitted(operator.get_openlineage_facets_on_complete(SimpleNamespace(start_date=began)), tmp_path)
    span = {"first": FIRST, "last": COMMITS}
    [read], [table, written] = event["inputs"], event["outputs"]
    assert (table["namespace"], table["name"]) == ("s3://lake", "shop/orders")
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == sum(range(FIRST, COMMITS + 1))
    namespace = f"kafka://{pipeline.config['bootstrap.servers'].split(',')[0]}"
    assert (read["namespace"], read["name"]) == (namespace, "in")
    assert (written["namespace"], written["name"]) == (namespace, "lineage.sink")
    offsets = read["inputFacets"]["exactlyonce_offsets"]
    assert offsets["commits"] == span
    taken = 10 * (COMMITS - FIRST + 1)
    assert offsets["partitions"] == [{"partition": 0, "start": 10 * (FIRST - 1), "end": 10 * COMMITS, "rows": taken}]
    own = [number for number in range(FIRST, COMMITS + 1) if number % 2]
    facets = written["outputFacets"]
    assert facets["outputStatistics"]["rowCount"] == 5 * PARTITIONS * len(own)
    for partition, offsets_written in enumerate(facets["exactlyonce_offsets"]["partitions"]):
        assert (offsets_written["partition"], offsets_written["rows"]) == (partition, 5 * len(own))
        # Five rows and a marker for each commit that wrote rows.
        assert offsets_written["start"] == 6 * ((FIRST - 1) // 2)
        assert offsets_written["end"] == 6 * (COMMITS // 2) - 1
    run = event["run"]["facets"]["exactlyonce_pipeline"]
    assert (run["pipeline"], run["run"], run["commits"], run["rows"]) == ("lineage", 1, span, 10 * len(own))
    assert run["watermark"] == COMMITS * 10
    for facet in (offsets, facets["exactlyonce_offsets"], run):
        assert facet["_schemaURL"].startswith("https://openlineage.io/spec/")
        assert facet["_producer"]


def test_a_table_that_is_read_has_the_name_that_the_run_found_it_by(tmp_path: Path) -> None:
    read = commit_record(source={"iceberg:lake.shop.orders": {0: (0, 3_000_000)}})
    sources = SourceClusters({"bootstrap.servers": "kafka:9092"}, {})
    known = read, [read], sources, {"iceberg:lake.shop.orders": ("s3://lake", "warehouse/shop/orders")}
    [table] = emitted(lineage.lineage_of(known), tmp_path)["inputs"]
    assert (table["namespace"], table["name"]) == ("s3://lake", "warehouse/shop/orders")
    assert table["inputFacets"]["exactlyonce_offsets"]["partitions"] == [{"partition": 0, "start": 0, "end": 3_000_000}]


@pytest.mark.parametrize(
    ("ranges", "version"),
    [
        ([(0, 0)], None),
        ([(0, 1_000_000)], "0"),
        ([(0, 13_000_000)], "12"),
        ([(0, 13_000_002)], "13"),
        ([(12_500_000, 12_500_003)], "12"),
        ([(13_000_000, 13_000_000)], None),  # begins behind version 12, which is never read
        ([(12_500_000, 12_500_000)], None),  # nor is the table at it yet
        ([(0, 2_000_000), (2_000_000, 2_000_000)], "1"),
        ([(0, 1_000_000), (1_000_000, 2_000_000)], "1"),
    ],
)
def test_of_a_delta_table_the_newest_version_that_was_read_is_told(
    ranges: Sequence[tuple[int, int]], version: str | None, tmp_path: Path
) -> None:
    commits = [commit_record(source={"delta:/lake/orders": {0: span}}) for span in ranges]
    known = (
        commits[-1],
        commits,
        SourceClusters({"bootstrap.servers": "kafka:9092"}, {}),
        {"delta:/lake/orders": ("file", "/lake/orders")},
    )
    [table] = emitted(lineage.lineage_of(known), tmp_path)["inputs"]
    assert table["facets"]["storage"].items() >= {"storageLayer": "delta", "fileFormat": "parquet"}.items()
    assert table["facets"].get("version", {}).get("datasetVersion") == version


WRITTEN = TableStatus(commit=COMMITS, version="812", storage="delta", columns=(("id", "bigint"), ("k", "string")))


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ({"table": WRITTEN}, "812"),
        ({"table": replace(WRITTEN, commit=COMMITS - 1)}, None),  # of another commit than the ledger's newest
        ({"table": replace(WRITTEN, version=None)}, None),
    ],
)
def test_a_table_that_is_written_has_its_format_columns_and_the_version_that_the_driver_has_told(
    pipeline: CraftedPipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: Mapping[str, TableStatus],
    version: str | None,
) -> None:
    operator = task(pipeline, tmp_path, monkeypatch)
    document = Status(pipeline="lineage", token="t", state=DriverState.FINISHED, tables=dict(told))
    status.write(Home(tmp_path / "home").status, document)
    done = SimpleNamespace(start_date=datetime.fromtimestamp(FIRST, UTC))
    table = emitted(operator.get_openlineage_facets_on_complete(done), tmp_path)["outputs"][0]
    assert (table["namespace"], table["name"]) == ("s3://lake", "shop/orders")
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == sum(range(FIRST, COMMITS + 1))
    assert table["facets"]["storage"].items() >= {"storageLayer": "delta", "fileFormat": "parquet"}.items()
    fields = [(each["name"], each["type"]) for each in table["facets"]["schema"]["fields"]]
    assert fields == [("id", "bigint"), ("k", "string")]
    assert table["facets"].get("version", {}).get("datasetVersion") == version


def test_a_table_of_a_pipeline_whose_driver_has_told_nothing_has_only_its_rows(
    pipeline: CraftedPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = task(pipeline, tmp_path, monkeypatch)
    done = SimpleNamespace(start_date=datetime.fromtimestamp(FIRST, UTC))
    table = emitted(operator.get_openlineage_facets_on_complete(done), tmp_path)["outputs"][0]
    assert table.get("facets", {}) == {}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document: json_store.write(document, {"schema": 2}),  # a newer release's
        lambda document: document.mkdir(),  # reading it is an OSError, as of a home that does not answer
    ],
)
def test_a_status_that_can_not_be_read_costs_no_more_than_what_it_tells(
    pipeline: CraftedPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], object]
) -> None:
    operator = task(pipeline, tmp_path, monkeypatch)
    done = SimpleNamespace(start_date=datetime.fromtimestamp(FIRST, UTC))
    without = operator.get_openlineage_facets_on_complete(done)
    assert without.outputs
    document = Home(tmp_path / "home").status
    document.parent.mkdir(exist_ok=True)
    spoil(document)
    assert operator.get_openlineage_facets_on_complete(done) == without


def test_a_home_that_can_not_be_read_costs_a_task_that_names_its_pipeline_nothing_of_what_kafka_has(
    pipeline: CraftedPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = task(pipeline, tmp_path, monkeypatch).checkpoint
    operator = UpgradePipelineOperator(task_id="t", pipeline="lineage", application="job.py", checkpoint=checkpoint)
    with_home = operator.get_openlineage_facets_on_start()
    assert with_home.outputs
    document = Path(checkpoint) / "home.json"
    document.unlink()
    document.mkdir()  # reading it is an OSError
    assert operator.get_openlineage_facets_on_start() == with_home


def test_a_task_that_fails_tells_the_same(
    pipeline: CraftedPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = task(pipeline, tmp_path, monkeypatch)
    done = SimpleNamespace(start_date=datetime.fromtimestamp(1, UTC))
    assert operator.get_openlineage_facets_on_failure(done) == operator.get_openlineage_facets_on_complete(done)


def test_a_task_that_begins_names_the_topics_and_no_offsets(
    pipeline: CraftedPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = emitted(task(pipeline, tmp_path, monkeypatch).get_openlineage_facets_on_start(), tmp_path)
    [read] = event["inputs"]
    assert (read["name"], read.get("inputFacets", {})) == ("in", {})
    assert [(out["name"], out.get("outputFacets", {})) for out in event["outputs"]] == [
        ("shop/orders", {}),
        ("lineage.sink", {}),
    ]
    assert "commits" not in event["run"]["facets"]["exactlyonce_pipeline"]


def test_a_pipeline_that_has_never_run_has_no_datasets_yet(
    kafka_config: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": dict(kafka_config)}))
    operator = StreamingPipelineOperator(task_id="s", application="job.py", checkpoint=str(tmp_path / "nowhere"))
    assert operator.get_openlineage_facets_on_start() == OperatorLineage()


@pytest.mark.parametrize("since", [1, FIRST, COMMITS, COMMITS + 1])
def test_reading_backwards_finds_the_same_as_reading_all(pipeline: CraftedPipeline, since: int) -> None:
    known = lineage.committed_since(pipeline.config, "lineage", since * 1000)
    assert known is not None
    assert [record.commit for record in known[1]] == list(range(since, COMMITS + 1))


def test_of_a_long_task_the_newest_commits_are_told(pipeline: CraftedPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "COMMITS_LIMIT", 20)
    known = lineage.committed_since(pipeline.config, "lineage", 1000)
    assert known is not None
    assert [record.commit for record in known[1]] == list(range(COMMITS - 19, COMMITS + 1))


def test_a_backfill_tells_what_is_in_the_ledger_of_backfills_and_an_upgrade_what_the_pipeline_commits() -> None:
    named: dict[str, Any] = {"task_id": "t", "pipeline": "shop", "application": "job.py"}
    assert BackfillPipelineOperator(**named).ledger_of("shop") == "shop.backfill"
    assert UpgradePipelineOperator(**named).ledger_of("shop") == "shop"


def test_a_backfill_beside_no_home_tells_what_its_ledger_has(
    pipeline: CraftedPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task(pipeline, tmp_path, monkeypatch)
    operator = BackfillPipelineOperator(
        task_id="t", pipeline="lineage", application="job.py", checkpoint=str(tmp_path / "nowhere")
    )
    assert operator.get_openlineage_facets_on_start() == OperatorLineage(), "it has committed nothing yet"
    with CraftedPipeline(pipeline.config, "lineage.backfill", "lineage.sink") as backfill:
        backfill.claim()
        backfill.session.begin()
        backfill.end(backfill.record(backfill.append(rows_of(1, PARTITIONS)), committed=FIRST * 1000))
    told = operator.get_openlineage_facets_on_complete(SimpleNamespace(start_date=datetime.fromtimestamp(1, UTC)))
    assert [output.name for output in told.outputs] == ["lineage.sink"]
    assert told.run_facets["exactlyonce_pipeline"].commits == {"first": 1, "last": 1}


def test_airflows_own_extractor_finds_the_methods(
    pipeline: CraftedPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.openlineage.extractors.base import DefaultExtractor

    extractor = DefaultExtractor(task(pipeline, tmp_path, monkeypatch))
    begun = extractor.extract()
    done = extractor.extract_on_complete(SimpleNamespace(start_date=datetime.fromtimestamp(1, UTC)))
    assert begun is not None
    assert done is not None
    assert [dataset.name for dataset in begun.inputs] == [dataset.name for dataset in done.inputs] == ["in"]
