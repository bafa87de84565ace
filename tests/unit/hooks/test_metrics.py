"""The metrics as a StatsD server gets them, and what the documentation says of them."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils

from airflow_provider_exactlyonce.control import lease, restarts, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.pipeline_state import state_of
from airflow_provider_exactlyonce.control.status import DriverState, StateSize, Status
from airflow_provider_exactlyonce.hooks import metrics
from airflow_provider_exactlyonce.hooks.metrics import METRICS, Reporter, measure, reporting
from airflow_provider_exactlyonce.sensors.pipeline_state import PipelineStateSensor
from tests.waiting import HANG_SECONDS

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Give the socket to which Airflow's own StatsD client sends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.2)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(server.getsockname()[1]))
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
        yield server
        monkeypatch.undo()
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)


def received(server: socket.socket) -> dict[str, float]:
    metrics: dict[str, float] = {}
    while True:
        try:
            text = server.recv(65_536).decode()
        except TimeoutError:
            return metrics
        name, value, kind = re.fullmatch(r"airflow\.([^:]+):([-\d.e]+)\|(\w+)", text).groups()  # type: ignore[union-attr]
        assert kind == "g"
        metrics[name] = float(value)


def home_of(folder: Path, **facts: object) -> Home:
    home = Home(folder / "home")
    home.create("shop.totals")
    held = lease.acquire(home.lease, "shop.totals", "t")
    given = {"commit": 7, "run": 3, "rows": 500, "lag": 42, **facts}
    status.write(home.status, Status(pipeline="shop.totals", token=held.token, state=DriverState.RUNNING, **given))  # type: ignore[arg-type]
    return home


def test_a_statsd_server_gets_every_metric_under_the_pipelines_name(server: socket.socket, tmp_path: Path) -> None:
    now = time.time()
    sizes = [
        StateSize(
            operator="transformWithStateInPySparkExec",
            rows=4000,
            memory_bytes=900,
            disk_bytes=70_000,
            changed=100,
            milliseconds=40,
            commit_milliseconds=9,
        ),
        StateSize(
            operator="stateStoreSave",
            rows=30,
            memory_bytes=5_000,
            disk_bytes=None,
            changed=25,
            milliseconds=10,
            commit_milliseconds=9,
        ),
    ]
    home = home_of(
        tmp_path,
        committed=now - 60,
        batch_began=now - 5,
        watermark=int(now - 300) * 1000,
        state_sizes=sizes,
        rows_by_sink={"Kafka": 500, "my.table": 200},
        records=900,
        late_rows=7,
        late_total=70,
    )
    lease.acquire(home.standby, "shop.totals", "standby")
    path = home.control / "restarts.json"
    for number, died in ((1, now - 7200), (2, now - 600)):
        entry = restarts.Restart(
            series="s", number=number, token=str(number), run=number, commit=1, cause="", exit_code=-9, died=died
        )
        restarts.append(path, entry)
    Reporter(home).report()
    metrics = received(server)
    assert metrics["exactlyonce.shop__totals.rows_of_run_for_sink.my__table"] == 200
    assert {name for name in metrics if "__" not in name} == {
        f"exactlyonce.{name}" for name in METRICS if name != "savepoint_age_seconds"
    }
    shop = {
        name.rpartition(".")[2]: value
        for name, value in metrics.items()
        if name.startswith("exactlyonce.shop__totals.")
    }
    for name, expected in {
        "commit_age_seconds": 60.0,
        "transaction_age_seconds": 5.0,
        "watermark_age_seconds": 300.0,
        "lag_records": 42.0,
        "drivers_running": 1.0,
        "standbys_ready": 1.0,
        "restarts_per_hour": 1.0,
        "commits_total": 7.0,
        "runs_total": 3.0,
        "rows_of_run": 500.0,
        "Kafka": 500.0,
        "my__table": 200.0,
        "records_of_run": 900.0,
        "late_rows_of_run": 7.0,
        "late_rows_total": 70.0,
        "guarantee_weaker": 0.0,
        "state_rows": 4030.0,
        "state_bytes": 75_000.0,
    }.items():
        assert shop.pop(name) == pytest.approx(expected, abs=2), name
    assert shop == {"state_milliseconds_per_row": pytest.approx(50 / 125)}


def test_what_is_not_known_is_not_sent(server: socket.socket, tmp_path: Path) -> None:
    Reporter(Home(tmp_path / "nowhere")).report()
    assert received(server) == {}
    Reporter(home_of(tmp_path, lag=None)).report()
    metrics = received(server)
    assert not {name for name in metrics if name.rpartition(".")[2] in ("lag_records", "commit_age_seconds")}
    assert not {name for name in metrics if "state_" in name}
    assert metrics["exactlyonce.transaction_age_seconds"] == 0


def test_names_without_tags_can_be_turned_off(
    server: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__LEGACY_NAMES_ON", "False")
    Reporter(home_of(tmp_path)).report()
    assert not [name for name in received(server) if "shop" in name]


def test_a_driver_that_is_gone_is_not_counted_as_running(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    home.lease.unlink()
    state, driver_status = state_of(home)
    assert driver_status is not None
    assert measure(home, state, driver_status, time.time())["drivers_running"] == 0


def test_a_watcher_reports_at_once_and_then_at_its_interval(
    server: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "INTERVAL_SECONDS", 0.3)
    home = home_of(tmp_path)
    reporter = Reporter(home)
    for _ in range(50):
        reporter.report()
    first = received(server)
    assert first
    with reporting(home):
        assert received(server)
        status.write(home.status, Status(pipeline="shop.totals", token="t", state=DriverState.RUNNING, commit=8))
        while received(server).get("exactlyonce.commits_total") != 8:
            pass  # the next report comes
    received(server)  # what was still on its way
    assert received(server) == {}, "nothing is sent when nobody watches"


def test_who_waits_for_a_state_reports_too(server: socket.socket, tmp_path: Path) -> None:
    home = home_of(tmp_path)
    sensor = PipelineStateSensor(task_id="s", checkpoint=str(home.path), states=["running"])
    assert sensor.execute({})["state"] == "running"
    assert received(server)["exactlyonce.commits_total"] == 7


def test_what_fails_is_logged_and_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = home_of(tmp_path)
    home.status.unlink()
    home.status.mkdir()
    Reporter(home).report()
    assert f"the metrics of {home.path} could not be sent" in caplog.text


def test_the_documentation_lists_every_metric_and_its_alerts_use_no_other() -> None:
    text = (DOCS / "metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", text, re.MULTILINE))
    assert rows == METRICS
    [rules] = re.findall(r"```yaml\n(groups:.*?)```", text, re.DOTALL)
    [group] = yaml.safe_load(rules)["groups"]
    alerts = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    used = {name for expression in alerts.values() for name in re.findall(r"exactlyonce_(\w+)", expression)}
    assert used <= set(METRICS)
    assert {"commit_age_seconds", "lag_records", "transaction_age_seconds", "savepoint_age_seconds"} <= used
    [mapping] = re.findall(r"```yaml\n(mappings:.*?)```", text, re.DOTALL)
    assert yaml.safe_load(mapping)["mappings"][0]["match"] == "airflow.exactlyonce.*.*"


def test_a_report_that_hangs_does_not_hold_up_who_supervises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked = threading.Event(), threading.Event()

    def report(_: Reporter) -> None:
        asked.set()
        answers.wait(HANG_SECONDS)

    monkeypatch.setattr(Reporter, "report", report)
    monkeypatch.setattr(metrics, "_LAST_REPORT_SECONDS", 0.01)
    with reporting(Home(tmp_path)):
        assert asked.wait(HANG_SECONDS)
    hung = [thread for thread in threading.enumerate() if thread.name == "metrics"]
    answers.set()
    assert hung
    assert all(thread.daemon for thread in hung), "it does not hold up the end of the process either"
    for thread in hung:
        thread.join(HANG_SECONDS)
