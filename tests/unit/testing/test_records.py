"""What a test gives as a record, and what the job under test reads of it."""

from __future__ import annotations

from decimal import Decimal

import pytest

from airflow_provider_exactlyonce.testing.records import record_of


@pytest.mark.parametrize("text", ["12.50", "0.1", "1E+3", "-0.00", "123456789012345.6"])
def test_a_decimal_of_a_row_is_read_as_the_number_that_it_is(text: str) -> None:
    value = record_of({"price": Decimal(text)}).value
    assert value is not None
    assert Decimal(value.decode().partition(": ")[2].rstrip("}")) == Decimal(text)


@pytest.mark.parametrize("text", ["12345678901234567.89", "0.10000000000000000001", "1E+400", "NaN"])
def test_a_decimal_that_would_be_read_as_another_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"has more digits than .* give the record's value as text") as refused:
        record_of({"order": {"price": Decimal(text)}})
    assert str(refused.value).startswith(f"Decimal('{text}') of a row")
