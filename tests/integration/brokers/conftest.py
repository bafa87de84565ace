from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import class_archives
from tests.integration.brokers.cluster import BrokerCluster
from tests.integration.brokers.network import one_at_a_time, why_impossible

COLUMNS = ("seconds to the next commit", "readers held up, seconds", "restarts of the driver")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Give three brokers; a test leaves them whole."""
    if reason := why_impossible():
        pytest.skip(reason)
    class_archives.ensure_broker()
    with one_at_a_time(), BrokerCluster(tmp_path_factory.mktemp("brokers")) as running:
        yield running


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of the cases that noted something."""
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        if getattr(report, "when", "") == "call" and dict(report.user_properties).get("case")
    ]
    if not reports:
        return
    terminalreporter.write_line(f"\n| case | verdict | {' | '.join(COLUMNS)} |\n|---|---|{'---|' * len(COLUMNS)}")
    for report in reports:
        noted = dict(report.user_properties)
        cells = " | ".join(str(noted.get(column, "")) for column in COLUMNS)
        terminalreporter.write_line(f"| {noted['case']} | {noted.get('verdict', report.outcome)} | {cells} |")
