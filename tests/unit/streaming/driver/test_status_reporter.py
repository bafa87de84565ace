"""What a driver tells of its lag."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.streaming.driver.status_reporter import DriverReport


def test_a_lag_that_nobody_can_measure_any_more_is_unknown_and_no_progress(tmp_path: Path) -> None:
    report = DriverReport(Home(tmp_path), "t", "p")
    report.available({("in", 0): 30})
    assert report.status.lag is None, "nothing is committed yet"
    report.read({"in": {0: (0, 30)}})
    report.available({("in", 0): 30})
    progressed = report.status.progressed
    assert (report.status.lag, progressed > 0) == (0, True)
    report.available({})  # a source's cluster is away
    assert (report.status.lag, report.status.progressed) == (None, progressed)
    report.available({("in", 0): 42})
    assert report.status.lag == 12
