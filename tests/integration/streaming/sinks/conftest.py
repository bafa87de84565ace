"""Which tests of the conformance ``make test`` leaves to ``make test-all``, where a kind of sink has two modes."""

from __future__ import annotations

import pytest

CALLS_FAIL = "test_rows_are_there_once_whichever_calls_fail"
SET_BACK = f"{CALLS_FAIL}_while_a_sink_that_was_set_back_gets_what_it_lacks"
AFTER_STEPS = "test_a_batch_is_there_once_whichever_step_its_process_dies_after"
WITHIN_STEPS = "test_a_batch_is_there_once_wherever_within_a_step_its_process_dies"
#: Each is tried with one of the two, and each of the two with half of them.
LEFT = {
    "TestDeltaSink": {SET_BACK, WITHIN_STEPS},
    "TestDeltaUpserts": {CALLS_FAIL, AFTER_STEPS},
    "TestPostgresSink": {SET_BACK, WITHIN_STEPS},
    "TestPostgresUpserts": {CALLS_FAIL, AFTER_STEPS},
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them as slow, before the marks are looked at."""
    for item in items:
        if isinstance(item, pytest.Function) and item.cls and item.originalname in LEFT.get(item.cls.__name__, ()):
            item.add_marker(pytest.mark.slow)
