"""The Iceberg sink's committer does what the table of states allows, as those of the other sinks that stage files.

It is no unit test: SQLAlchemy, which the catalog needs, looks at all that the process has of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.streaming.sinks.iceberg.lake import IcebergLake
from tests.unit.streaming.sinks.lakehouse.test_committer_states import (
    Calls,
    test_a_claim_is_possible_wherever_a_committer_stands,
    test_a_claim_that_fails_leaves_nothing_claimed,
    test_a_step_is_taken_where_the_table_has_it_and_is_refused_elsewhere,
    test_an_abort_ends_an_attempt_and_does_nothing_where_there_is_none,
)

__all__ = [
    "test_a_claim_is_possible_wherever_a_committer_stands",
    "test_a_claim_that_fails_leaves_nothing_claimed",
    "test_a_step_is_taken_where_the_table_has_it_and_is_refused_elsewhere",
    "test_an_abort_ends_an_attempt_and_does_nothing_where_there_is_none",
]


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(IcebergLake(tmp_path).sink(name="s"), tmp_path)
