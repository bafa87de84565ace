"""Which snapshots of an Iceberg table may go: those past its retention behind which nothing stands."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from airflow_provider_exactlyonce.streaming.sinks.iceberg.retention import expired

NOW = 1_000_000


def table(
    snapshots: Mapping[int, int | None], refs: Mapping[str, Mapping[str, Any]], **properties: object
) -> TableMetadata:
    """Return a table of which snapshot n was written at n seconds, after the one that is given."""
    schema: dict[str, Any] = {"type": "struct", "schema-id": 0, "fields": []}
    return TableMetadataUtil.parse_obj(
        {
            "format-version": 2,
            "table-uuid": str(uuid.uuid4()),
            "location": "file:///t",
            "last-column-id": 0,
            "last-sequence-number": 99,
            "last-updated-ms": NOW,
            "schemas": [schema],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": {name.replace("_", "."): str(value) for name, value in properties.items()},
            "current-snapshot-id": refs["main"]["snapshot-id"],
            "refs": {name: {"type": "branch", **ref} for name, ref in refs.items()},
            "snapshots": [
                {
                    "snapshot-id": key,
                    "sequence-number": key,
                    "timestamp-ms": key * 1000,
                    "manifest-list": "m",
                    **({} if parent is None else {"parent-snapshot-id": parent}),
                    "summary": {"operation": "append"},
                }
                for key, parent in snapshots.items()
            ],
        }
    )


#: Ten snapshots, one after the other.
TEN: dict[int, int | None] = {number: number - 1 or None for number in range(1, 11)}
MAIN: dict[str, Mapping[str, Any]] = {"main": {"snapshot-id": 10}}
AGE, LEAST = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"


def test_old_ones_go_and_the_newest_stays() -> None:
    assert expired(table(TEN, MAIN, **{AGE: 1}), NOW, ()) == list(range(1, 10))
    assert expired(table(TEN, MAIN), NOW, ()) == [], "five days is Iceberg's default"
    assert expired(table(TEN, MAIN), NOW + 5 * 86_400_000 - 1_000_000 + 5_000, ()) == [1, 2, 3, 4]


@pytest.mark.parametrize(("age_ms", "least", "gone"), [(5000, 1, 4), (5000, 3, 4), (5000, 8, 2), (1, 3, 7)])
def test_who_is_young_or_among_the_last_stays(age_ms: int, least: int, gone: int) -> None:
    assert expired(table(TEN, MAIN, **{AGE: age_ms, LEAST: least}), 10_000, ()) == list(range(1, gone + 1))


def test_what_a_tag_or_a_branch_stands_for_stays() -> None:
    refs: dict[str, Mapping[str, Any]] = {
        **MAIN,
        "kept": {"type": "tag", "snapshot-id": 3},
        "side": {"snapshot-id": 12, "min-snapshots-to-keep": 2},
        "long": {"snapshot-id": 14, "max-snapshot-age-ms": 995_000},
    }
    snapshots = {**TEN, 11: 2, 12: 11, 13: 1, 14: 13}
    assert expired(table(snapshots, refs, **{AGE: 1}), NOW, ()) == [1, 2, 4, 5, 6, 7, 8, 9]


def test_what_no_branch_leads_to_goes_when_it_is_old() -> None:
    snapshots = {**TEN, 11: 5, 990: 5}
    assert expired(table(snapshots, MAIN, **{AGE: 50_000}), NOW, ()) == [*range(1, 10), 11]


def test_main_leads_to_what_a_ledger_names_as_long_as_it_is_kept() -> None:
    refs: dict[str, Mapping[str, Any]] = {**MAIN, "kept": {"type": "tag", "snapshot-id": 6}}
    assert expired(table(TEN, refs, **{AGE: 1}), NOW, {6, 2}) == [1, 2, 3, 4, 5]
    assert expired(table(TEN, MAIN, **{AGE: 1}), NOW, {6, 2}) == list(range(1, 10)), "its property has the entry"


def test_a_table_that_is_not_to_be_cleaned_up_keeps_all() -> None:
    assert expired(table(TEN, MAIN, **{AGE: 1, "gc.enabled": "false"}), NOW, ()) == []
