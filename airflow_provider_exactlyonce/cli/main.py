"""The command ``exactlyonce``: thin; every subcommand calls what the operators call."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.cli import pages
from airflow_provider_exactlyonce.cli.audit import add_audit_parser
from airflow_provider_exactlyonce.cli.audit_sinks import add_audit_sinks_parser
from airflow_provider_exactlyonce.cli.backfill import add_backfill_parser
from airflow_provider_exactlyonce.cli.broker import add_broker_parser
from airflow_provider_exactlyonce.cli.check import add_check_parser
from airflow_provider_exactlyonce.cli.doctor import add_doctor_parser
from airflow_provider_exactlyonce.cli.explain import add_explain_parser
from airflow_provider_exactlyonce.cli.list_pipelines import add_list_parser
from airflow_provider_exactlyonce.cli.output import print_answer
from airflow_provider_exactlyonce.cli.rescale import add_rescale_parser
from airflow_provider_exactlyonce.cli.restore import add_restore_parser
from airflow_provider_exactlyonce.cli.savepoint import add_pipeline_arguments, add_savepoint_parser, with_action
from airflow_provider_exactlyonce.cli.state import add_state_parser
from airflow_provider_exactlyonce.cli.stop import add_stop_parser
from airflow_provider_exactlyonce.cli.transactions import add_transactions_parser
from airflow_provider_exactlyonce.cli.upgrade import add_upgrade_parser
from airflow_provider_exactlyonce.control import lease, processes, restarts, status, upgrade_plan
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.pipeline_state import outlook, state_of
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError, UnknownPipelineError
from airflow_provider_exactlyonce.kafka import config as kafka_config
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.ledger import listing
from airflow_provider_exactlyonce.ledger.home import never_started
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.records import EXACTLY_ONCE, ClaimRecord, shown
from airflow_provider_exactlyonce.streaming import settings
from airflow_provider_exactlyonce.streaming.driver import options
from airflow_provider_exactlyonce.text_tables import pairs, table

_RESTARTS_SHOWN: Final = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the process's exit code."""
    parser = argparse.ArgumentParser(prog="exactlyonce", description="Exactly-once PySpark streams.")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_run(subparsers)
    _add_status(subparsers)
    add_list_parser(subparsers)
    add_stop_parser(subparsers)
    add_savepoint_parser(subparsers)
    add_state_parser(subparsers)
    add_restore_parser(subparsers)
    add_rescale_parser(subparsers)
    add_check_parser(subparsers)
    add_explain_parser(subparsers)
    add_upgrade_parser(subparsers, submit_command)
    add_backfill_parser(subparsers, submit_command)
    add_audit_parser(subparsers)
    add_audit_sinks_parser(subparsers)
    add_doctor_parser(subparsers)
    add_transactions_parser(subparsers)
    add_broker_parser(subparsers)
    _add_help(subparsers)
    given = parser.parse_args(with_action(sys.argv[1:] if arguments is None else arguments))
    try:
        return int(given.func(given))
    except UnknownPipelineError as error:
        config = kafka_config.from_environment(given.bootstrap_servers)
        return _failed(error, f". {listing.hint(config, given.pipeline)}")
    except ExactlyOnceError as error:
        return _failed(error)


def _failed(error: ExactlyOnceError, hint: str = "") -> int:
    print(f"{type(error).__name__}: {error}{hint} ({error.page()})", file=sys.stderr)
    return error.exit_code


def _add_run(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="run a pipeline's driver here, through spark-submit",
        description="Run JOB.py through spark-submit with the settings that the protocol needs. Options may stand "
        "before and after JOB.py; what is not listed here goes to the job, and stands after it.",
        epilog="exit codes: 0 finished or stopped, 64 refused, 65 already running, 66 superseded by another run, "
        "67 a record that can't be processed, others: failed, start again",
        allow_abbrev=False,
    )
    _add_submission(parser)
    of_job = parser.add_argument_group("options of the job")
    options.add_arguments(partial(_add_forwarded, of_job))
    parser.add_argument("job", metavar="JOB.py", help="the job's file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="further options")
    parser.set_defaults(func=_run, forwarded=[])


def _add_submission(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", default="local[*]", help="Spark master (default: %(default)s)")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a Spark setting; repeatable")
    parser.add_argument("--packages", help="packages for Spark, instead of the connector that this project resolves")


class _Forward(argparse.Action):
    """Keep an option of the job as it was given."""

    def __call__(self, _: object, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        namespace.forwarded = [*namespace.forwarded, option_string, *([values] if isinstance(values, str) else [])]


def _add_forwarded(group: Any, name: str, **about: Any) -> None:
    nargs = 0 if about.get("action") == "store_true" else None
    group.add_argument(name, action=_Forward, nargs=nargs, dest="forwarded", metavar="VALUE", help=about["help"])


def _run(given: argparse.Namespace) -> int:
    ours = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    _add_submission(ours)
    given, of_job = ours.parse_known_args(given.arguments, given)
    command = submit_command(
        given.job,
        [*given.forwarded, *of_job],
        master=given.master,
        conf=settings.pairs(given.conf),
        packages=given.packages,
    )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return processes.run_in_foreground(command)


def submit_command(
    job: str, arguments: Sequence[str], *, master: str, conf: Mapping[str, str], packages: str | None = None
) -> list[str]:
    """Return the command line that runs a job's driver.

    :raises RefusedError: when the job is not there, or a setting contradicts a required one
    """
    if not Path(job).is_file():
        raise RefusedError(f"there is no job file {job!r}")
    beside = Path(sys.executable).with_name("spark-submit")
    command = [shutil.which("spark-submit") or str(beside), "--master", master]
    named = {"spark.app.name": Path(job).name, **conf}  # not that of the program which runs it
    for name, value in settings.submit_settings(named).items():
        command += ["--conf", f"{name}={value}"]
    if packages:
        command += ["--packages", packages]
    else:
        from airflow_provider_exactlyonce.devkit.jars import spark_connector_jars

        command += ["--jars", ",".join(map(str, spark_connector_jars()))]
    return [*command, *settings.program_of(job), *arguments]


def _add_help(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "help",
        help="print what an error means and what to do, or a page of the documentation",
        description="Print a part of the documentation of this version. Without TOPIC, list them.",
    )
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="an error's name, an exit code, or a page's name")
    parser.set_defaults(func=_help)


def _help(given: argparse.Namespace) -> int:
    rows = [{"page": name, "about": title} for name, title in pages.titles().items()]
    end = "exactlyonce help TOPIC prints one of them; exactlyonce COMMAND --help is for a command"
    text = f"{table(rows)}\n\nerrors: {', '.join(pages.errors())}\n\n{end}" if given.topic is None else None
    try:
        print(text or pages.find(given.topic), flush=True)
    except BrokenPipeError:  # a pager has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _add_status(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "status",
        help="show where a pipeline is",
        description="Show a pipeline's last commit and run from its ledger, and its driver from its home.",
    )
    add_pipeline_arguments(parser)
    parser.set_defaults(func=_status)


def _status(given: argparse.Namespace) -> int:
    from confluent_kafka import KafkaException

    config = reach.reached(given.bootstrap_servers)
    try:
        with LedgerReader(config, given.pipeline) as reader:
            tail = reader.tail()
            lost = _lost(reader, tail)
    except KafkaException as error:
        raise ExactlyOnceError(f"Kafka at {config['bootstrap.servers']} did not answer: {error.args[0]}") from error
    if tail is None or tail.claim is None:
        raise never_started(given.pipeline)
    home = Home(given.home or tail.claim.home_path)
    facts, deaths, sizes = _facts(given.pipeline, tail, home), _restarts(home), _state_sizes(home)
    facts["lost"] = lost
    body = {**facts, "state_sizes": sizes, "restarts": deaths}
    print_answer(given, body, "\n\n".join(filter(None, (pairs(facts), table(sizes), table(deaths)))))
    return 0


def _facts(pipeline: str, tail: LedgerTail, home: Home) -> dict[str, Any]:
    claim, commit = tail.claim, tail.commit
    held = lease.read(home.lease)
    driver = status.read(home.status)
    newest = driver if driver and claim and driver.token == claim.token else None
    plan = upgrade_plan.read(home)
    is_here = home.path.is_dir()
    return {
        "pipeline": pipeline,
        "run": claim.run if claim else None,
        "driver": lease.life(held).value if is_here else "unknown",
        "state": state_of(home)[0].value if is_here else None,
        "next": outlook(home) if is_here else f"{home.path} is not on this machine: nothing is known of the driver",
        "pid": held.pid if held else None,
        "host": held.host if held else None,
        "home": str(home.path),
        "lineage": claim.lineage if claim else None,
        "version": claim.version if claim else None,
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
            f"operator {one.operator} ({one.name}): {one.rows} rows behind {_time(one.watermark)}"
            for one in (commit.late if commit and commit.late else ())
        ],
        "undelivered": newest.undelivered if newest and newest.undelivered else None,
        "guarantee": claim.guarantee if claim else None,
        "weaker_because": newest.weaker if newest else None,
        "replay": asdict(newest.replay) if newest and newest.replay else None,
        "error": newest.error.message if newest and newest.error else None,
        "source": {topic: {p: end for p, (_, end) in of.items()} for topic, of in commit.source.items()}
        if commit
        else {},
    }


def _state_sizes(home: Home) -> list[dict[str, Any]]:
    driver = status.read(home.status)
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


def _lost(reader: LedgerReader, tail: LedgerTail | None) -> list[str]:
    """Return the commits whose rows may be lost, which can be in a pipeline that delivers at most once only."""
    if tail is None or tail.claim is None or tail.claim.guarantee == EXACTLY_ONCE:
        return []
    claims = (record for _, record in reader.records() if isinstance(record, ClaimRecord))
    found = {commit: source for claim in claims for commit, source in claim.lost.items()}
    return [f"commit {commit}: {shown(source)}" for commit, source in sorted(found.items())]


def _restarts(home: Home) -> list[dict[str, Any]]:
    """Return the newest drivers that died and were to be started again, oldest first."""
    return [
        {
            "died": _time(round(one.died * 1000)),
            "run": one.run,
            "commit": one.commit,
            "exit_code": one.exit_code,
            "restart": one.number,
            "started_again": _time(round(one.relaunched * 1000)) if one.relaunched else None,
            "cause": one.cause,
        }
        for one in restarts.read(home.restarts)[-_RESTARTS_SHOWN:]
    ]


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


if __name__ == "__main__":
    sys.exit(main())
