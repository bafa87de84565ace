"""Properties with which a table keeps less than its format does by itself are named, with what is in danger."""

from __future__ import annotations

from typing import Literal

import pytest

from airflow_provider_exactlyonce.tables.retention import dangers

FILES, LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
AGE, COUNT = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"


@pytest.mark.parametrize(
    ("name", "value", "role", "said"),
    [
        (FILES, "interval 1 hour", "sink", "VACUUM removes what a batch that takes longer has written"),
        (FILES, "interval 6 days 23 hours", "source", "VACUUM removes files that were replaced by a compaction"),
        (LOG, "interval 0 seconds", "sink", "the audit can't compare older commits"),
        (LOG, "29 DAYS", "source", "older versions are cleaned up"),
        (AGE, "1", "sink", "the table can't be set back to them"),
        (AGE, "431999999", "source", "the newest snapshot that it has read is gone"),
        (COUNT, "0", "source", "the newest snapshot that it has read is gone"),
    ],
)
def test_less_than_usual_is_named_with_its_value_what_is_in_danger_and_the_way_out(
    name: str, value: str, role: Literal["sink", "source"], said: str
) -> None:
    [danger] = dangers({name: value, "other": "1"}, role)
    assert danger.startswith(f"{name}={value!r}: ")
    assert said in danger
    assert danger.endswith(f"ALTER TABLE … UNSET TBLPROPERTIES ('{name}')")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (FILES, "interval 1 week"),
        (FILES, "interval 168 hours"),
        (LOG, "interval 4 weeks 2 days"),
        (AGE, "432000000"),
        (COUNT, "1"),
    ],
)
def test_as_much_as_usual_and_more_is_in_no_danger(name: str, value: str) -> None:
    assert dangers({name: value}, "sink") == dangers({name: value}, "source") == []


@pytest.mark.parametrize(("name", "value"), [(FILES, "interval 1 month"), (LOG, "soon"), (AGE, "-1"), (COUNT, "1.5")])
def test_what_can_not_be_read_is_not_taken_for_enough(name: str, value: str) -> None:
    [danger] = dangers({name: value}, "sink")
    assert danger.startswith(f"{name}={value!r}, which can't be read: ")


def test_each_property_has_a_sentence_of_its_own() -> None:
    assert len(dangers(dict.fromkeys((FILES, LOG, AGE, COUNT), "0"), "source")) == 4
