"""``python -m demo.cluster``: the main job on YARN, with its home on S3 and three brokers of which one is killed.

The parts are those of the tests of clusters, all real but the S3 server, and all on this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psutil
import pyspark
from confluent_kafka import KafkaException

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, ledger_topic
from demo import main_job, processes, report
from demo.bench import Bench, feed
from demo.console import Console
from demo.dag_run import DAGS
from demo.leader_kill import KilledLeader, LeaderKill
from demo.ledger_watch import LedgerWatch
from demo.stage import DemoFailedError, perform
from tests import object_stores
from tests.class_archives import SHORT_LIVED
from tests.hadoop_cluster import HadoopCluster, hadoop_cluster
from tests.integration.airflow.conftest import Airflow, make_airflow
from tests.integration.airflow.standalone import standalone
from tests.integration.brokers.cluster import NODES, BrokerCluster
from tests.integration.brokers.network import Loopback
from tests.ports import free_ports
from tests.waiting import eventually

DAG_ID: Final = "shop_totals_on_yarn"
KILL_AFTER_COMMIT: Final = 3
_LOOK_SECONDS: Final = 0.5
_AIM_SECONDS: Final = 5.0
_STATE_WORDS: Final = {
    "running": "runs",
    "deferred": "waits in the triggerer",
    "success": "has succeeded",
    "failed": "has failed",
    "upstream_failed": "does not run",
}


def main() -> int:
    """Run the demo; 0 when everything is right."""
    opening = "The shop's totals, exactly once: Airflow, YARN, a home on S3, three brokers, one of them killed."
    return perform(opening, _play)


def _play(console: Console, folder: Path) -> int:
    for name in [name for name in os.environ if name.startswith(processes.FOREIGN)]:
        del os.environ[name]
    os.environ["TMPDIR"] = str(_new_folder(folder / "tmp"))
    os.environ["KAFKA_OPTS"] = SHORT_LIVED
    try:
        with contextlib.ExitStack() as stack:
            account = _run(console, folder, stack)
    except AssertionError as error:  # what the parts say of a wait that was in vain
        raise DemoFailedError(str(error)) from error
    console.say("everything that was started has ended")
    console.plain(f"\n{report.text(account)}\n")
    console.plain(f"Next: read dags/{DAG_ID}.py; `exactlyonce help demo-cluster` retells it.")
    return 1 if account.problems else 0


def _run(console: Console, folder: Path, stack: contextlib.ExitStack) -> report.Account:
    clients, controllers = free_ports(2)
    console.say("three Kafka brokers start: replication factor 3, min.insync.replicas 2")
    brokers = stack.enter_context(
        BrokerCluster(_new_folder(folder / "brokers"), Loopback(NODES), (clients, controllers))
    )
    bench = feed(console, folder, {"bootstrap.servers": brokers.bootstrap_servers}, [main_job.TOPIC])
    console.say("HDFS and YARN start: a NameNode, a DataNode, a ResourceManager and a NodeManager")
    hadoop = stack.enter_context(hadoop_cluster(_new_folder(folder / "hadoop")))
    store = stack.enter_context(object_stores.moto())
    console.say(f"YARN is ready at {hadoop.resource_manager}, S3 at {store}")
    airflow = _airflow(bench, hadoop, store)
    console.say("Airflow starts: API server, scheduler, DAG processor, triggerer")
    airflow.run(airflow.command("db", "migrate"), {})
    with standalone(airflow, {}), _keeping_logs(folder, airflow, hadoop):
        dag_query = "SELECT 1 FROM serialized_dag WHERE dag_id = ?"
        eventually(lambda: airflow.query(dag_query, DAG_ID), "Airflow knows the DAG", poll_seconds=_LOOK_SECONDS)
        for command in ("unpause", "trigger"):
            airflow.run(airflow.command("dags", command, DAG_ID), {})
        console.say(f"the DAG {DAG_ID} is triggered: stream, gate, compare")
        killed = _Show(bench, airflow, hadoop, brokers).go_on()
        console.say(f"task compare: {_result(airflow, 'compare')}")
        restarts = _result(airflow, "stream")["restarts"]
    return _judge(bench, [killed] if killed else [], restarts)


def _judge(bench: Bench, killed: Sequence[KilledLeader], restarts: int) -> report.Account:
    history, records = main_job.history(bench.config, launches={}, kills=[leader.kill for leader in killed])
    [home] = {record.home_path for record in records if isinstance(record, ClaimRecord)}
    bench.console.say(f"the pipeline's home, as its ledger has it: {home}")
    return bench.account(history, records, kills=1, restarts=restarts)


def _airflow(bench: Bench, hadoop: HadoopCluster, store: str) -> Airflow:
    """Return an Airflow whose connections lead to the cluster and to the bucket."""
    airflow = make_airflow(_new_folder(bench.folder / "airflow"), dict(bench.config))
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": hadoop.resource_manager}
    connections = {
        "SPARK_DEFAULT": {"conn_type": "spark", "host": "yarn", "extra": extra},
        "AWS_DEFAULT": object_stores.connection(store),
    }
    environment = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        **{f"AIRFLOW_CONN_{name}": json.dumps(connection) for name, connection in connections.items()},
        "HADOOP_CONF_DIR": str(hadoop.configuration),
        "SPARK_CONF_DIR": str(_spark_settings(bench.folder / "spark")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "XDG_STATE_HOME": str(bench.folder / "state"),
    }
    return replace(airflow, environment={**airflow.environment, **environment})


def _spark_settings(folder: Path) -> Path:
    """Write what applications of this small cluster have in common, and return the folder that Spark reads."""
    settings = {
        # Every host of a cluster has Spark, or else each application brings 400 MB.
        "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent / 'jars'}/*",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.instances": "1",
        "spark.ui.enabled": "false",
    }
    for part in ("driver", "executor"):
        settings |= {
            f"spark.{part}.memory": "512m",
            f"spark.{part}.memoryOverhead": "256m",
            f"spark.{part}.extraJavaOptions": SHORT_LIVED,
        }
    lines = (f"{name} {value}\n" for name, value in settings.items())
    (_new_folder(folder) / "spark-defaults.conf").write_text("".join(lines))
    return folder


class _Show:
    """Follows the DAG to its end, and kills a broker on the way."""

    def __init__(self, bench: Bench, airflow: Airflow, hadoop: HadoopCluster, brokers: BrokerCluster) -> None:
        self._bench, self._say = bench, bench.console.say
        self._airflow, self._hadoop, self._brokers = airflow, hadoop, brokers
        self._kill = LeaderKill(brokers, bench.config, main_job.PIPELINE, main_job.TOPIC, self._driver)
        self._killed: KilledLeader | None = None
        self._is_down = False
        self._states: dict[str, str] = {}

    def go_on(self) -> KilledLeader | None:
        """Return which broker was killed, when the DAG has succeeded and all brokers are there.

        :raises DemoFailedError: when the DAG did not succeed
        """
        with LedgerWatch(main_job.PIPELINE, self._bench.config, self._bench.progress, self._say) as watch:
            while (state := self._state()) not in ("success", "failed"):
                if self._is_driver_up():
                    with contextlib.suppress(KafkaException, ExactlyOnceError):  # nothing is known then; it looks again
                        watch.look()
                    self._kill_or_restart(watch)
                time.sleep(_LOOK_SECONDS)
        if state == "failed":
            raise DemoFailedError(f"the DAG did not succeed: {self._states}")
        if self._is_down:
            self._restart()
        self._brokers.wait_until_whole()
        return self._killed

    def _state(self) -> str:
        """Return the DAG run's state; tell what is new of its tasks."""
        [(run,)] = self._airflow.query("SELECT state FROM dag_run WHERE dag_id = ?", DAG_ID)
        for task, state in self._airflow.query("SELECT task_id, state FROM task_instance WHERE dag_id = ?", DAG_ID):
            if state in _STATE_WORDS:
                self._tell(f"task {task}", _STATE_WORDS[state])
        return str(run)

    def _is_driver_up(self) -> bool:
        """Return whether an application runs; tell what is new of all."""
        applications = self._hadoop.applications()
        for application in applications:
            self._tell(f"YARN: {application['id']}", f"is {application['state']}")
        return any(application["state"] == "RUNNING" for application in applications)

    def _tell(self, subject: str, state: str) -> None:
        if self._states.get(subject) != state:
            self._states[subject] = state
            self._say(f"{subject} {state}")

    def _kill_or_restart(self, watch: LedgerWatch) -> None:
        commit = watch.commit
        if commit is None:
            return
        if self._killed is None:
            if commit.commit >= KILL_AFTER_COMMIT and (killed := self._kill.carry_out(watch.run, _AIM_SECONDS)):
                self._killed, self._is_down = killed, True
                self._say(
                    f"broker {killed.broker} is killed (SIGKILL): it leads partition {killed.partition} of "
                    f"{main_job.TOPIC}, in which {killed.rows:,} rows of a batch are written, and not committed"
                )
                self._await_other_leaders(killed)
                watch.reconnect()
        elif self._is_down and commit.committed / 1000 > self._killed.kill.at:
            seconds = commit.committed / 1000 - self._killed.kill.at
            self._say(
                f"commit {commit.commit} came without broker {self._killed.broker}, {seconds:.1f} s after its end"
            )
            self._restart()

    def _await_other_leaders(self, killed: KilledLeader) -> None:
        """Wait until Kafka sends nobody to the killed broker, where a request waits for as long as it may take."""
        topic_partitions = (main_job.TOPIC, killed.partition), (ledger_topic(main_job.PIPELINE), 0)

        def leaders() -> list[int] | None:
            leader_ids = [self._brokers.leader(*topic_partition) for topic_partition in topic_partitions]
            return None if {killed.broker, -1} & set(leader_ids) else leader_ids

        leader, _ = eventually(leaders, "other brokers lead", poll_seconds=_LOOK_SECONDS)
        self._say(f"broker {leader} leads partition {killed.partition}, {time.time() - killed.kill.at:.1f} s later")

    def _restart(self) -> None:
        assert self._killed is not None
        self._brokers.start(self._killed.broker)
        self._is_down = False
        self._say(f"broker {self._killed.broker} starts again, and fetches what it has missed")

    def _driver(self) -> list[psutil.Process]:
        """Return the processes in the application's first container."""
        [application] = self._hadoop.applications(states="RUNNING")
        containers = self._hadoop.containers(application["id"])
        return [process for process in containers if process.cwd().endswith("_000001")]


def _result(airflow: Airflow, task: str) -> Any:
    query = "SELECT value FROM xcom WHERE dag_id = ? AND task_id = ? AND key = 'return_value'"
    [(value,)] = airflow.query(query, DAG_ID, task)
    return json.loads(value)


@contextlib.contextmanager
def _keeping_logs(folder: Path, airflow: Airflow, hadoop: HadoopCluster) -> Iterator[None]:
    """Put the logs of containers, of Airflow and of its tasks where they are kept."""
    try:
        yield
    finally:
        output = map(hadoop.output, (application["id"] for application in hadoop.applications()))
        (folder / "containers.log").write_text("\n".join(output))
        shutil.copy(airflow.home / "standalone.log", folder / "airflow.log")
        (folder / "tasks.log").write_text(airflow.task_logs())


def _new_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
