"""What a table lacks is told with the way out."""

from __future__ import annotations

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.table_checks import check_complete, check_has, check_key


def test_a_column_that_the_rows_have_and_the_table_lacks_is_named_with_its_type() -> None:
    check_has("t", ["a", "b"], "a", "int")
    with pytest.raises(RefusedError, match=r"table t has no column c, which the rows have as int: add it.*has a, b"):
        check_has("t", ["a", "b"], "c", "int")
    with pytest.raises(RefusedError, match=r"table t has no column commit: add it\. The table has a"):
        check_has("t", ["a"], "commit")


def test_a_column_that_must_have_a_value_and_gets_none_is_named() -> None:
    check_complete("t", ["a"], ["a", "b"])
    with pytest.raises(RefusedError, match="column b of table t is NOT NULL"):
        check_complete("t", ["a", "b"], ["a"])


def test_a_key_is_one_set_of_columns_that_are_unique_together_in_whatever_order() -> None:
    check_key("t", ["b", "a"], [["c"], ["a", "b"]])
    with pytest.raises(RefusedError, match=r"over \(a\), by which.*ALTER TABLE t ADD PRIMARY KEY \(a\)"):
        check_key("t", ["a"], [["a", "b"]])
