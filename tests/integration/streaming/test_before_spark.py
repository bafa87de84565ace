"""Mistakes that need no Spark to be found are found where there is none: no Java, so nothing could start a JVM."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import BatchFailedError, ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.streaming import settings
from tests import commands
from tests.waiting import HANG_SECONDS

JOB = """
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, PostgresSink, pipeline

@pipeline(name="early", source=KafkaSource({source!r}, schema={schema!r}), sink={sink})
def early(events):
    return events

if __name__ == "__main__":
    early.main()
"""


@pytest.fixture
def start(
    tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> Callable[..., tuple[int, list[str]]]:
    """Return what starts a driver without Java and returns its exit code and its log lines but for INFO."""
    source, sink = make_topic(partitions=1), make_topic(partitions=1)

    def starts(home: str = "home", kafka: Mapping[str, str] = kafka_config, **job: str) -> tuple[int, list[str]]:
        given = {"source": source, "schema": "id BIGINT", "sink": f"KafkaSink({sink!r})", **job}
        file = tmp_path / "job.py"
        file.write_text(JOB.format(**given))
        done = subprocess.run(
            [sys.executable, *settings.program_of(str(file)), "--home", str(tmp_path / home)],
            env={
                **os.environ,
                "JAVA_HOME": "/nowhere",
                "PGHOST": "/nowhere",
                "EXACTLYONCE_KAFKA": json.dumps(dict(kafka)),
            },
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        assert not (tmp_path / "home").exists(), "nothing was touched"
        return done.returncode, [line for line in done.stderr.splitlines() if "this cluster has one broker" not in line]

    return starts


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"schema": "id BIGNIT"}, RefusedError, "job.py:4: schema of KafkaSource"),
        ({"source": "absent.topic"}, RefusedError, "absent.topic"),
        ({"home": "job.py/home"}, RefusedError, "can't be made below .*job.py: Not a directory"),
        ({"sink": "PostgresSink(name='pg', table='t')"}, BatchFailedError, "PostgreSQL does not answer"),
        ({"kafka": {"bootstrap.servers": "127.0.0.1:9", "securty.protocol": "SSL"}}, RefusedError, "securty.protocol"),
    ],
)
def test_it_is_told_in_one_sentence_and_no_jvm_was_started(
    start: Callable[..., tuple[int, list[str]]], given: dict[str, str], kind: type[ExactlyOnceError], said: str
) -> None:
    code, lines = start(**given)
    assert code == kind.exit_code, lines
    assert len(lines) == 1
    assert re.search(f" ERROR {kind.__name__}: .*{said}", lines[0])


def test_a_cluster_that_can_not_be_reached_is_told_with_the_reason_by_commands() -> None:
    nobody = "127.0.0.1:9"
    for command in (["status", "shop"], ["list"], ["transactions", "list"], ["audit-sinks", "job.py"]):
        said = commands.run_apart(*command, "--bootstrap-servers", nobody, code=ExactlyOnceError.exit_code)
        [line] = said.err.splitlines()
        assert line.startswith(f"ExactlyOnceError: Kafka at {nobody} can't be reached: ")
        assert "Connection refused" in line
