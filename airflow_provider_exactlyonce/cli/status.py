"""The subcommand ``exactlyonce status``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from airflow_provider_exactlyonce import moments
from airflow_provider_exactlyonce.cli.arguments import PIPELINE, declare
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer, waiting
from airflow_provider_exactlyonce.control import lease, restarts, standbys, status, upgrade_plan
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.pipeline_state import outlook, state_of
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.ledger.home import never_started
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import EXACTLY_ONCE, ClaimRecord, CommitRecord, shown
from airflow_provider_exactlyonce.storage.opening import is_there
from airflow_provider_exactlyonce.text_tables import pairs, table

_RESTARTS_SHOWN: Final = 5
_time: Final = partial(moments.text, timespec="milliseconds")


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "status",
        _status,
        summary="show where a pipeline is",
        details="The last commit and run are read from its ledger, the rest from its home.",
        example="shop-totals --bootstrap-servers localhost:9092",
    )
    declare(command, *PIPELINE)


def _status(given: argparse.Namespace) -> None:
    from confluent_kafka import KafkaException

    config = reach.reached(given.bootstrap_servers)
    try:
        with waiting(f"Kafka at {config['bootstrap.servers']}"), LedgerReader(config, given.pipeline) as reader:
            tail = reader.tail()
            if tail is None or tail.claim is None:
                raise never_started(given.pipeline)
            lost = _lost(reader, tail.claim)
    except KafkaException as error:
        raise reach.unanswered(config, error) from error
    home = Home(given.home or tail.claim.home_path)
    driver, deaths = status.read(home.status), _restarts(home)
    facts, sizes = _facts(tail.claim, tail.commit, home, driver), _state_sizes(driver)
    facts["lost"] = lost
    body = {**facts, "state_sizes": sizes, "restarts": deaths}
    print_answer(given, body, "\n\n".join(filter(None, (pairs(facts), table(sizes), table(deaths)))))


def _facts(claim: ClaimRecord, commit: CommitRecord | None, home: Home, driver: status.Status | None) -> dict[str, Any]:
    held, life = lease.look(home.lease)
    newest = driver if driver and driver.token == claim.token else None
    plan = upgrade_plan.read(home)
    is_here = is_there(home.path)
    standby = standbys.waiting(home) if is_here else None
    return {
        "pipeline": claim.pipeline,
        "run": claim.run,
        "driver": life.value if is_here else "unknown",
        "state": state_of(home)[0].value if is_here else None,
        "next": outlook(home) if is_here else f"{home} is not on this machine: nothing is known of the driver",
        "pid": held.pid if held else None,
        "host": held.host if held else None,
        "standby": f"pid {standby.pid} on {standby.host}" if standby else None,
        "home": str(home),
        "lineage": claim.lineage,
        "version": claim.version,
        "upgrade": plan.sentence if plan is not None and not plan.is_over else None,
        "commit": commit.commit if commit else 0,
        "batch": commit.batch if commit else None,
        "committed": _time(commit.committed) if commit else None,
        "watermark": _time(commit.watermark) if commit and commit.watermark else None,
        "lag": newest.lag if newest else None,
        "rows_of_run": newest.rows_by_sink if newest else None,
        "records_of_run": newest.records if newest else None,
        "late_rows": commit.late_total if commit and commit.late is not None else None,
        "late_in_last_commit": [
            f"operator {late.operator} ({late.name}): {late.rows} rows behind {_time(late.watermark)}"
            for late in (commit.late if commit and commit.late else ())
        ],
        "undelivered": newest.undelivered if newest and newest.undelivered else None,
        "guarantee": claim.guarantee,
        "weaker_because": newest.weaker if newest else None,
        "replay": asdict(newest.replay) if newest and newest.replay else None,
        "error": newest.error.message if newest and newest.error else None,
        "source": {
            topic: {partition: end for partition, (_, end) in ranges.items()} for topic, ranges in commit.source.items()
        }
        if commit
        else {},
    }


def _state_sizes(driver: status.Status | None) -> list[dict[str, Any]]:
    return [
        {
            "stateful_operator": size.operator,
            "rows": size.rows,
            "memory_bytes": size.memory_bytes,
            "disk_bytes": size.disk_bytes,
            "rows_changed": size.changed,
            "milliseconds": size.milliseconds,
            "milliseconds_per_row": round(size.milliseconds / size.changed, 3) if size.changed else None,
            "commit_milliseconds": size.commit_milliseconds,
        }
        for size in (driver.state_sizes if driver else ())
    ]


def _lost(reader: LedgerReader, newest: ClaimRecord) -> list[str]:
    """Return the commits with possibly lost rows; only a pipeline that delivers at most once has any."""
    if newest.guarantee == EXACTLY_ONCE:
        return []
    claims = (record for _, record in reader.records() if isinstance(record, ClaimRecord))
    lost = {commit: source for claim in claims for commit, source in claim.lost.items()}
    return [f"commit {commit}: {shown(source)}" for commit, source in sorted(lost.items())]


def _restarts(home: Home) -> list[dict[str, Any]]:
    """Return the newest drivers that died and were to be started again, oldest first."""
    return [
        {
            "died": _time(round(restart.died * 1000)),
            "run": restart.run,
            "commit": restart.commit,
            "exit_code": restart.exit_code,
            "restart": restart.number,
            "started_again": _time(round(restart.relaunched * 1000)) if restart.relaunched else None,
            "cause": restart.cause,
        }
        for restart in restarts.read(home.restarts)[-_RESTARTS_SHOWN:]
    ]
