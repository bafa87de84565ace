"""Everything that runs: brokers, PostgreSQL, object store, Airflow, and with it both pipelines; all on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import Error as PostgresError

from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.ledger import topic as ledger_settings
from demo import processes
from tests import class_archives, object_stores, postgres
from tests.integration.airflow.conftest import TRIGGERS_IDS_ARE_NEW, Airflow, make_airflow
from tests.integration.airflow.parts import Parts
from tests.integration.brokers.cluster import HEAP_MEGABYTES, NODES, PORTS, BrokerCluster
from tests.integration.brokers.network import Loopback, Network, one_at_a_time, why_impossible
from tests.ports import free_ports
from tests.soak import names

NETWORK, SUBNET = "soak", "10.213.78"
_ANSWER_SECONDS = 120.0
_MOST_TRIES = 10
PARTS = ("api-server", "scheduler", "triggerer")
_TABLE = (
    f"CREATE TABLE {names.POSTGRES_TABLE} (id bigint NOT NULL, account text NOT NULL, number bigint NOT NULL, "
    "amount numeric(12,2) NOT NULL, balance numeric(18,2) NOT NULL, commit bigint)"
)


class World:
    """Use it as a context manager: at its end nothing of it runs.

    :param folder: for all that it writes
    :param say: told what is under way
    :ivar limits: what this machine does not allow
    """

    brokers: BrokerCluster
    postgres: postgres.PostgresServer
    database: Mapping[str, str]
    store: object_stores.SeaweedFS
    parts: Parts

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self._say = folder, say
        self.limits: list[str] = []
        self.homes = {pipeline: Home(names.home(folder, pipeline)) for pipeline in names.PIPELINES}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> World:
        with contextlib.ExitStack() as stack:  # which ends what is there when another part does not start
            self._enter(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def config(self) -> dict[str, str]:
        """Kafka's client configuration."""
        return {"bootstrap.servers": self.brokers.bootstrap_servers}

    @property
    def store_options(self) -> dict[str, str]:
        """What delta-rs needs to know of the store."""
        return {
            "aws_access_key_id": object_stores.KEY,
            "aws_secret_access_key": object_stores.SECRET,
            "aws_endpoint_url": self.store.address,
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        }

    def tokens(self) -> dict[str, str]:
        """Return {start token: pipeline} of the drivers that were started last."""
        found = {}
        for pipeline, home in self.homes.items():
            for owner in (lease.read(home.lease), intents.read(home.intent)):
                if owner is not None:
                    found[owner.token] = pipeline
        return found

    def driver(self, pipeline: str) -> str | None:
        """Return the start token of the driver that holds a pipeline."""
        held = lease.read(self.homes[pipeline].lease)
        return held.token if held else None

    def trigger(self, dag: str, run_id: str, **conf: Any) -> None:
        """Start a DAG run; again, when the API server has not answered.

        :raises OSError: when it does not answer for long
        """
        deadline = time.monotonic() + _ANSWER_SECONDS
        while self.state(run_id) is None:
            try:
                self.parts.trigger(dag, run_id, conf)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)

    def state(self, run_id: str) -> str | None:
        """Return a DAG run's state, None when there is no such run."""
        rows = self._query("SELECT state FROM dag_run WHERE run_id = ?", run_id)
        return str(rows[0][0]) if rows else None

    def pushed(self, run_id: str) -> dict[str, Any]:
        """Return what the task of a DAG run has pushed: its result, or the plan of an upgrade that has failed."""
        query = "SELECT value FROM xcom WHERE run_id = ? AND key IN ('return_value', 'plan')"
        rows = self._query(query, run_id)
        value = json.loads(rows[0][0]) if rows else {}
        return dict(json.loads(value) if isinstance(value, str) else value)

    def task_log(self, run_id: str) -> str:
        """Return the end of a DAG run's newest log."""
        logs = (self.parts.airflow.home / "logs").rglob(f"run_id={run_id}/**/*.log")
        newest = max(logs, key=lambda log: log.stat().st_mtime, default=None)
        return newest.read_text(errors="replace")[-1500:] if newest else "it has no log"

    def heal(self) -> None:
        """Bring everything back that was killed or frozen."""
        self.brokers.heal()
        if self.store.process is None or self.store.process.poll() is not None:
            self.store.start()
        try:
            with self.postgres.connect({**self.database, "connect_timeout": 5}):
                pass
        except PostgresError:
            self.postgres.start()
        self.parts.start(*(name for name in PARTS if name not in self.parts.running))

    def restart_what_has_ended(self) -> list[str]:
        """Start Airflow's parts again that have ended by themselves, as a service manager would; returns which."""
        ended = [name for name, part in list(self.parts.running.items()) if part.poll() is not None]
        for name in ended:
            self.parts.start(name)
        return ended

    def _query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Ask Airflow's database, again while somebody writes."""
        for _ in range(_MOST_TRIES):
            with contextlib.suppress(sqlite3.OperationalError):
                return self.parts.airflow.query(sql, *values)
            time.sleep(0.5)
        return self.parts.airflow.query(sql, *values)

    def _enter(self, stack: contextlib.ExitStack) -> None:
        for name in [name for name in os.environ if name.startswith(processes.FOREIGN)]:
            del os.environ[name]
        temporary = self.folder / "tmp"
        temporary.mkdir()
        os.environ["TMPDIR"] = os.environ["SPARK_LOCAL_DIRS"] = str(temporary)
        os.environ["KAFKA_OPTS"] = class_archives.BROKER_OPTIONS
        class_archives.ensure_broker()
        names.write_versions(self.folder)
        self._say("three Kafka brokers start: replication factor 3, min.insync.replicas 2")
        self.brokers = self._make_brokers(stack)
        self._say("PostgreSQL and the object store start")
        self.postgres = stack.enter_context(postgres.running())
        self.database = self.postgres.create_database("soak")
        with self.postgres.connect(self.database) as connection:
            connection.execute(_TABLE)
            connection.execute(f"CREATE INDEX ON {names.POSTGRES_TABLE} (id)")  # not unique: doubles must be seen
        self.store = stack.enter_context(object_stores.SeaweedFS(_made(self.folder / "store")))
        self._make_topics()
        self._say("Airflow starts: API server, scheduler, triggerer")
        self.parts = Parts(self._make_airflow(), _made(self.folder / "parts"))
        self.parts.environment |= {
            "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).with_name("dags")),
            "AIRFLOW__CORE__PARALLELISM": "8",
            "AIRFLOW__OPENLINEAGE__DISABLED": "True",
        }
        stack.callback(self.parts.close)
        self.parts.start_all()

    def _make_brokers(self, stack: contextlib.ExitStack) -> BrokerCluster:
        network: Network = Network(NODES, NETWORK, SUBNET)
        ports = PORTS
        if reason := why_impossible():
            self.limits.append(f"the brokers share this machine's loopback interface: {reason}")
            network, ports = Loopback(NODES), tuple(free_ports(2))  # type: ignore[assignment]
        stack.enter_context(one_at_a_time(NETWORK))
        heap = f"-Xms{HEAP_MEGABYTES}m", "-XX:+AlwaysPreTouch"  # as of the drivers
        return stack.enter_context(BrokerCluster(_made(self.folder / "brokers"), network, ports, heap))

    def _make_topics(self) -> None:
        admin = AdminClient({**self.config, "log_level": 0})
        for topic in (names.BOOKINGS_TOPIC, names.POSTED_TOPIC):
            admin.create_topics([NewTopic(topic, names.PARTITIONS)])[topic].result(60)
        for pipeline in names.PIPELINES:
            ledger_settings.ensure(self.config, pipeline)
        self.brokers.wait_until_whole()

    def _make_airflow(self) -> Airflow:
        airflow = make_airflow(_made(self.folder / "airflow"), self.config)
        database = {"host": self.database["host"], "schema": self.database["dbname"], "login": self.database["user"]}
        connections = {
            names.POSTGRES_CONNECTION: {"conn_type": "postgres", **database},
            names.STORE_CONNECTION: object_stores.connection(self.store.address),
        }
        environment = {
            **airflow.environment,
            **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in connections.items()},
            "SOAK_FOLDER": str(self.folder),
        }
        airflow = replace(airflow, environment=environment)
        airflow.run(airflow.command("db", "migrate"), {})
        with closing(sqlite3.connect(airflow.database)) as database_file:
            database_file.executescript(TRIGGERS_IDS_ARE_NEW)
        return airflow


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
