"""``exactlyonce backfill`` with real processes: killed, at the same time as others, beside a pipeline that runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.audit.check import AuditOptions, audit
from airflow_provider_exactlyonce.failpoints import VARIABLE as FAILPOINTS
from tests import commands
from tests.integration.streaming.harness import CONF, World, check_counts, read_committed
from tests.waiting import eventually


def command(world: World, *arguments: str, armed: Path | None = None) -> subprocess.Popen[str]:
    conf = [part for name, value in CONF.items() for part in ("--conf", f"{name}={value}")]
    return subprocess.Popen(
        [
            *(*commands.PROGRAM, "backfill", world.pipeline),
            *("--json", "--master", "local[2]", *conf, *arguments),
        ],
        env={
            **os.environ,
            "EXACTLYONCE_KAFKA": json.dumps(dict(world.config)),
            **world.names,
            FAILPOINTS: f"@{armed}" if armed else "",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def answer(process: subprocess.Popen[str], code: int = 0) -> dict[str, Any]:
    said, errors = process.communicate()
    assert process.returncode == code, errors[-3000:]
    body: dict[str, Any] = json.loads(said)
    return body


def rows(world: World, topic: str) -> Counter[bytes | None]:
    return Counter(record.value for record in read_committed(world.config, topic))


def delivered(world: World, first: int, last: int) -> Counter[bytes | None]:
    commits, _ = world.ledger()
    ranges = [
        (partition, span)
        for record in commits
        if first <= record.commit <= last
        for partition, span in record.sink[world.sink].items()
    ]
    return Counter(
        record.value
        for record in read_committed(world.config, world.sink)
        if any(record.partition == part and span.first <= record.offset <= span.last for part, span in ranges)
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_backfills_that_are_killed_and_run_at_once_beside_the_pipeline_write_each_row_once(
    world: World, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    world.send(2000)
    assert world.start().wait() == 0
    newest = world.commits()
    assert newest >= 5
    live = world.start(until="forever")
    eventually(lambda: len(world.ledger()[1]) == 2, "the pipeline runs")

    first_topic, second_topic = make_topic(partitions=2), make_topic(partitions=1)
    armed = tmp_path / "failpoint"
    armed.write_text("backfill-prepared")
    killed = command(world, "--commits", "2..4", "--output", f"topic={first_topic}", armed=armed)
    beside = command(world, "--commits", f"3..{newest}", "--output", f"topic={second_topic}")
    for step in ("after-end-transaction:batch=1", "backfill-step:batch=2"):
        eventually(lambda: not armed.exists(), "it was killed")
        world.send(300)
        armed.write_text(step)
    eventually(lambda: not armed.exists(), "it was killed")
    of_killed, of_beside = answer(killed), answer(beside)
    assert rows(world, first_topic) == delivered(world, 2, 4)
    assert rows(world, second_topic) == delivered(world, 3, newest)
    assert (of_killed["rows"], of_beside["rows"]) == (
        rows(world, first_topic).total(),
        rows(world, second_topic).total(),
    )
    assert answer(command(world, "--commits", "2..4", "--output", f"topic={first_topic}")) == of_killed

    assert live.process.poll() is None, "the pipeline has run all the while"
    eventually(
        lambda: (
            sum(end - start for record in world.ledger()[0] for start, end in record.source[world.source].values())
            == world.sent
        ),
        "it has committed everything",
    )
    assert world.stop(live) == 0
    check_counts(world)
    again = answer(command(world, "--commits", f"2..{newest}", "--output", "reemit"))
    assert rows(world, world.sink).total() - sum(record.rows for record in world.ledger()[0]) == again["rows"] > 0
    assert answer(command(world, "--commits", f"1..{newest}"))["clean"]
    report = audit(world.config, world.pipeline, AuditOptions(patience_seconds=20))
    assert (report.found, report.backfills) == ((), 4)
    assert report.backfilled_rows == of_killed["rows"] + of_beside["rows"] + again["rows"]
