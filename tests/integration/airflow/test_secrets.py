"""A pipeline with TLS, SCRAM and ACLs, or with its home in a bucket; and a look for the secrets everywhere."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.hooks.home import home_at
from airflow_provider_exactlyonce.storage.opening import store_of
from tests import object_stores
from tests.integration.airflow.conftest import Airflow, names_of
from tests.integration.airflow.test_dag import RUN
from tests.integration.kafka.secured import Right, SecuredBroker, documented_rights, secured_broker
from tests.integration.streaming.harness import CONN_ID, World, check_counts
from tests.processes import command_line
from tests.waiting import eventually

#: JSON, JAAS and a shell escape none of it, so that it is found however it was written.
SECRET = f"hush{uuid.uuid4().hex}"
PAGES = ("/environment/", "/SQL/", "/StreamingQuery/", "/jobs/", "/executors/")


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path / "secured") as broker:
        yield broker


def files_with_the_secret(folder: Path) -> list[Path]:
    paths = []
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            try:
                if path.is_file() and SECRET.encode() in path.read_bytes():
                    paths.append(path)
            except OSError:  # it is gone already
                continue
    return paths


def documents_with_the_secret(home: Home) -> list[str]:
    """Return what a home, wherever it is, holds the secret in."""
    store = store_of(home.path)
    read = {name: store.read(home.path / name) for name in store.files(home.path)}
    assert read, "there is a home"
    return [name for name, stored in read.items() if stored is not None and SECRET.encode() in stored.content]


def is_for_its_owner_only(path: Path, root: Path) -> bool:
    """Tell whether others are kept out by the file or by a folder between it and the root."""
    try:
        return any(
            not parent.stat().st_mode & (0o005 if parent.is_dir() else 0o004)
            for parent in (path, *path.parents)
            if parent.is_relative_to(root) and parent != root
        )
    except FileNotFoundError:  # it is gone already
        return True


def command_lines_with_the_secret() -> list[str]:
    return [text for text in map(command_line, psutil.pids()) if SECRET in text]


@dataclass
class Watcher:
    """Looks again and again while the pipeline runs."""

    local: Path
    home: Home
    leaks: list[str] = field(default_factory=list)
    pages: dict[str, str] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watcher:
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self.leaks += [f"command line: {line}" for line in command_lines_with_the_secret()]
            self.leaks += [
                f"file: {path}"
                for path in files_with_the_secret(self.local)
                if not is_for_its_owner_only(path, self.local)
            ]
            driver_status = status.read(self.home.status)
            if driver_status is not None and driver_status.ui_url:
                self._read_pages(driver_status.ui_url, driver_status.application_id or "")

    def _read_pages(self, url: str, application: str) -> None:
        for page in (*PAGES, f"/api/v1/applications/{application}/environment"):
            try:
                with urllib.request.urlopen(url + page, timeout=5) as answer:
                    self.pages[page] = self.pages.get(page, "") + answer.read().decode()
            except OSError:
                continue


def spark_settings(folder: Path) -> dict[str, str]:
    """Return the environment in which Spark keeps an event log, and its files where they can be looked at."""
    for name in ("conf", "events", "local"):
        (folder / name).mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",  # or nothing would be found in it
        "spark.eventLog.dir": (folder / "events").as_uri(),
    }
    (folder / "conf" / "spark-defaults.conf").write_text("".join(f"{name} {to}\n" for name, to in settings.items()))
    return {"SPARK_CONF_DIR": str(folder / "conf"), "SPARK_LOCAL_DIRS": str(folder / "local")}


@pytest.mark.slow
def test_a_pipeline_runs_over_tls_with_a_password_that_is_nowhere_to_be_seen(
    airflow: Airflow, secured: SecuredBroker, tmp_path: Path
) -> None:
    user = secured.make_user(SECRET)
    source, sink = secured.make_topic(3), secured.make_topic(4)
    names = {"SOURCE": source, "SINK": sink, "PIPELINE": f"p-{source}"}
    readers = [Right("topic", sink, "Read"), Right("group", "independent-reader", "Read")]  # the DAG's last task
    secured.grant(user, [*(right.of(names) for right in documented_rights()), *readers])
    world = World(
        config=secured.open_config, pipeline=names["PIPELINE"], source=source, sink=sink, home=tmp_path / "home"
    )
    connection = json.dumps({"conn_type": "kafka", "extra": secured.config(user, SECRET)})
    run_and_look(airflow, world, tmp_path, {"AIRFLOW_CONN_KAFKA_DEFAULT": connection})


@pytest.mark.slow
def test_the_password_to_a_sources_own_cluster_is_nowhere_to_be_seen(
    airflow: Airflow,
    secured: SecuredBroker,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    user, source = secured.make_user(SECRET), secured.make_topic(3)
    [reads] = [right for right in documented_rights() if right.name == "SOURCE"]
    secured.grant(user, [reads.of({"SOURCE": source})])
    sink, home = make_topic(partitions=4), tmp_path / "home"
    world = World(kafka_config, f"p-{source}", source, sink, home, elsewhere=secured.open_config)
    connection = json.dumps({"conn_type": "kafka", "extra": secured.config(user, SECRET)})
    run_and_look(airflow, world, tmp_path, {f"AIRFLOW_CONN_{CONN_ID.upper()}": connection, "TEST_CONN_ID": CONN_ID})


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # boto's clients have deprecations of their own
def test_the_key_to_a_homes_bucket_is_nowhere_to_be_seen(
    airflow: Airflow, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with object_stores.moto() as address:
        connection = json.dumps({**object_stores.connection(address), "password": SECRET})
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", connection)  # for what looks at the home
        place: Any = f"s3://lake@bucket/{uuid.uuid4()}"
        world.home = place
        run_and_look(
            airflow,
            world,
            tmp_path,
            {"AIRFLOW_CONN_LAKE": connection, "XDG_STATE_HOME": str(tmp_path / "state")},
        )
    events = b"".join(file.read_bytes() for file in (tmp_path / "events").rglob("*") if file.is_file())
    assert b'"fs.s3a.secret.key":"*********(redacted)"' in events, "Spark was given the key, and hides it"


def run_and_look(airflow: Airflow, world: World, tmp_path: Path, connections: Mapping[str, str]) -> None:
    """Run a pipeline and its gate in a DAG, compare what it wrote, and look for the secret everywhere."""
    world.send(1000)
    environment = {**names_of(world, tmp_path / "result.json"), **spark_settings(tmp_path), **connections}
    command = [
        sys.executable,
        "-c",
        RUN,
        airflow.environment["AIRFLOW__CORE__DAGS_FOLDER"],
        "stream_then_gate",
        "success",
    ]
    home = home_at(str(world.home))
    with Watcher(tmp_path / "local", home) as watcher:
        airflow.run(command, environment)
    check_counts(world)

    assert watcher.leaks == []
    assert {"/environment/", "/SQL/"} <= watcher.pages.keys()
    assert any(page.startswith("/api/") for page in watcher.pages)
    assert [page for page, text in watcher.pages.items() if SECRET in text] == []
    assert list((tmp_path / "events").iterdir())
    assert sum(1 for _ in home.logs.iterdir()) == 1
    assert documents_with_the_secret(home) == []
    for folder in (airflow.home, home.logs, tmp_path / "events", tmp_path / "local"):
        assert files_with_the_secret(folder) == []
    assert_nothing_in(airflow.home / "airflow.db", world)


def assert_nothing_in(database: Path, world: World) -> None:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as opened:
        text = "\n".join(opened.iterdump())
    assert "rendered_task_instance_fields" in text
    assert str(world.home) in text  # as a rendered field; so the look has seen them
    assert world.pipeline in text  # in an XCom
    assert SECRET not in text


def test_the_look_finds_what_is_there(tmp_path: Path) -> None:
    planted = tmp_path / "folder" / "file"
    planted.parent.mkdir(mode=0o755)
    planted.write_bytes(b"\0" + SECRET.encode() + b"\0")
    assert files_with_the_secret(tmp_path) == [planted]
    assert not is_for_its_owner_only(planted, tmp_path)
    planted.chmod(0o600)
    assert is_for_its_owner_only(planted, tmp_path)
    planted.chmod(0o644)
    planted.parent.chmod(0o700)
    assert is_for_its_owner_only(planted, tmp_path)
    child = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", "import time; time.sleep(60)", SECRET])
    try:
        eventually(lambda: len(command_lines_with_the_secret()) == 1, "the command line is seen")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
