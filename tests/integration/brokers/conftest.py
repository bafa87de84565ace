from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import class_archives
from tests.integration.brokers.cluster import BrokerCluster
from tests.integration.brokers.network import one_at_a_time, why_impossible
from tests.integration.brokers.trial import NoteProperty, Trial

DISK_MEGABYTES = 256
COLUMNS = ("seconds to the next commit", "readers held up, seconds", "restarts of the driver")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Give three brokers; a test leaves them whole."""
    if reason := why_impossible():
        pytest.skip(reason)
    class_archives.ensure_broker()
    folder = tmp_path_factory.mktemp("brokers")
    with one_at_a_time(), BrokerCluster(folder, disk_megabytes=DISK_MEGABYTES) as running:
        yield running


@pytest.fixture(scope="module")
def trials(cluster: BrokerCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Trial]]:
    made: list[Trial] = []
    yield made
    for trial in made:
        trial.pipeline.close()


@pytest.fixture
def trial(cluster: BrokerCluster, trials: list[Trial], tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """Give a pipeline that runs, on a cluster that is whole; a new one after a test that failed."""
    cluster.heal()
    if not trials or not trials[-1].is_well:
        trials.append(Trial(cluster, tmp_path_factory.mktemp("trial"), f"brokers-{len(trials)}"))
    trial = trials[-1]
    trial.is_well = False
    trial.ensure_runs()
    cluster.wait_until_whole()
    return trial


@pytest.fixture
def note(record_property: NoteProperty) -> NoteProperty:
    """Give what notes a cell of the table at the end."""
    return record_property


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
