"""A typed error gets through Spark's text as what it was."""

from __future__ import annotations

import pytest

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RecordTooLargeError, RefusedError
from airflow_provider_exactlyonce.streaming.spark.typed_errors import find, mark


@pytest.mark.parametrize("kind", [RecordTooLargeError, RefusedError])
def test_an_error_that_a_task_marks_is_found_in_sparks_text(kind: type[ExactlyOnceError]) -> None:
    marked = mark(kind, "grant it:\nnow")
    error = find(f"Job aborted due to stage failure:\n{kind.__name__}: {marked}\n\tat java")
    assert type(error) is kind
    assert str(error) == "grant it:\nnow"


def test_text_without_a_mark_tells_nothing() -> None:
    assert find("RefusedError: not marked [exactlyonce:Other]x[/exactlyonce]") is None
