"""Tables among the clusters of a pipeline's sources: found by their names, and compared with what was claimed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_exactlyonce.exceptions import DataLostError, RefusedError
from airflow_provider_exactlyonce.ledger.commit_range import CommitSpan, check_input
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.source_clusters import SourceCluster, SourceClusters, SourceTable
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.tables.positions import SNAPSHOT, Position
from tests.ledger_records import claim_record, commit_record
from tests.unit.tables.delta_tables import append, entry, three_versions

OWN = "own"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return three_versions(tmp_path / "orders")


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SourceCluster, "id", property(lambda cluster: OWN))


def clusters(path: Path, conn_id: str = "") -> SourceClusters:
    return SourceClusters({}, {f"delta:{path}": conn_id})


def id_of(path: Path) -> str:
    return str(DeltaTable(path).metadata().id)


def tail(claimed: Mapping[str, tuple[str, str]]) -> LedgerTail:
    return LedgerTail(cluster_id=OWN, topic_id="t", end_offset=9, claim=claim_record(7, source_clusters=claimed))


def span_of(path: Path, start: int, end: int, table_id: str | None = None) -> CommitSpan:
    name = f"delta:{path}"
    span = CommitSpan(first=4, last=4)
    span.add(commit_record(4, source={name: {0: (start, end)}}, source_topic_ids={name: table_id or id_of(path)}))
    return span


def test_a_new_pipeline_begins_only_where_the_table_can_be_read(path: Path) -> None:
    append(path, 6)
    DeltaTable(path).create_checkpoint()
    entry(path, 0).unlink()
    table, name = clusters(path).of(f"delta:{path}"), f"delta:{path}"
    table.check_begins({name: {0: Position(1).offset}})
    table.check_begins({name: {0: Position(3, SNAPSHOT).offset}})
    with pytest.raises(RefusedError, match=r"starting_version of the source: .* at version 1 is not known any more"):
        table.check_begins({name: {0: Position(1, SNAPSHOT).offset}})
    clusters(path).of("events").check_begins({"events": {0: 7}})


def test_a_table_is_asked_by_itself_and_everything_else_the_cluster(path: Path) -> None:
    made, name = clusters(path), f"delta:{path}"
    table = made.of(name)
    assert isinstance(table, SourceTable)
    assert made.of("orders") is made.own
    assert made.by_cluster({name: 1, "orders": 2}) == {made.own: {"orders": 2}, table: {name: 1}}
    assert made.here({name: 1, "orders": 2}) == {"orders": 2}
    assert made.topics(SourceTopics(names=(name,))) == [name]
    assert made.recorded == {name: ("", id_of(path))}
    assert made.datasets == {name: ("file", str(path))}
    assert (table.topic_id(name), table.earliest(name), table.stable(name)) == (id_of(path), {0: 0}, {0: 3_000_000})
    assert made.offsets.starts([(name, 0)]) == {(name, 0): 0}
    (facts,) = table.checked([name], allow_single_replica=False).values()
    assert (facts.name, facts.topic_id, facts.partitions) == (name, id_of(path), 1)


def test_what_is_in_a_range_is_counted_in_rows(path: Path) -> None:
    made, name = clusters(path), f"delta:{path}"
    assert made.records_at_most({name: {0: (1_000_000, 3_000_000)}}) == 4
    assert made.records_at_most({name: {0: (0, 1_000_000)}, "orders": {0: (5, 8), 1: (1, 1)}}) == 5
    span = span_of(path, 0, 3_000_000)
    assert span.records == 3  # versions


def test_a_table_that_was_made_anew_is_refused_at_the_start_and_before_a_commit(path: Path) -> None:
    name, before = f"delta:{path}", id_of(path)
    made = clusters(path)
    made.check(tail({name: ("", before)}), [SourceTopics(names=(name,))])
    made.check(tail({}), [SourceTopics(names=(name,))])  # one that is new
    made.of(name).check_topic_ids({name: before})
    shutil.rmtree(path)
    with pytest.raises(RefusedError, match="does not exist"):
        made.of(name).check_topic_ids({name: before})
    append(path, 1)
    with pytest.raises(DataLostError, match="was recreated"):
        made.of(name).check_topic_ids({name: before})
    with pytest.raises(
        RefusedError, match=rf"source topic {name} is read from table {name} now.*whose id was {before}"
    ):
        clusters(path).check(tail({name: ("", before)}), [SourceTopics(names=(name,))])
    claimed = SourceClusters.claimed({}, claim_record(source_clusters={name: ("", before)}))
    with pytest.raises(DataLostError, match="was recreated"):
        claimed.of(name).topic_id(name)


def test_the_input_of_a_replay_is_checked_up_to_its_files(path: Path) -> None:
    made = clusters(path)
    check_input(made, span_of(path, 0, 3_000_000))
    with pytest.raises(RefusedError, match=rf"source table delta:{path} was recreated: commit 4 read it with id other"):
        check_input(made, span_of(path, 0, 3_000_000, "other"))
    DeltaTable(path).optimize.compact()
    check_input(made, span_of(path, 0, 3_000_000))
    DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(RefusedError, match=r"which has to be read again, is gone: .* between version 1 and version 3"):
        check_input(made, span_of(path, 1_000_000, 3_000_000))


def test_versions_that_are_gone_are_named(path: Path) -> None:
    DeltaTable(path).create_checkpoint()
    (path / "_delta_log" / f"{0:020d}.json").unlink()
    with pytest.raises(RefusedError, match="from version 0 to before version 1, of commit 4"):
        check_input(clusters(path), span_of(path, 0, 3_000_000))
    check_input(clusters(path), span_of(path, 1_000_000, 3_000_000))


def test_the_input_of_a_replay_of_a_whole_table_is_checked_up_to_its_files(path: Path) -> None:
    DeltaTable(path).create_checkpoint()
    for version in range(2):
        entry(path, version).unlink()
    made = clusters(path)
    check_input(made, span_of(path, 2_500_000, 3_000_000))
    assert made.records_at_most({f"delta:{path}": {0: (2_500_001, 3_000_000)}}) == 4
    DeltaTable(path).optimize.compact()
    DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(RefusedError, match=r"is gone: .* between the table at version 2 and version 3"):
        check_input(made, span_of(path, 2_500_000, 3_000_000))
    DeltaTable(path).create_checkpoint()
    entry(path, 2).unlink()
    with pytest.raises(RefusedError, match="from the table at version 2 to before version 3, of commit 4"):
        check_input(clusters(path), span_of(path, 2_500_000, 3_000_000))


def test_a_connection_is_found_in_the_environment_of_stores(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = clusters(path, "lake").of(f"delta:{path}")
    monkeypatch.setenv("EXACTLYONCE_STORES", json.dumps({"lake": {"aws_region": "eu"}}))
    assert table.config == {"aws_region": "eu"}
    with pytest.raises(RefusedError, match="has no connection other"):
        _ = clusters(path, "other").of(f"delta:{path}").config
    assert SourceClusters({}, {f"delta:{path}": "lake"}, lambda conn_id: {"of": conn_id}).of(
        f"delta:{path}"
    ).config == {"of": "lake"}
