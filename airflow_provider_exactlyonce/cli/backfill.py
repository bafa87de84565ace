"""The subcommand ``exactlyonce backfill``."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from airflow_provider_exactlyonce.backfill import workspace
from airflow_provider_exactlyonce.backfill.application import application_of, owner_of
from airflow_provider_exactlyonce.backfill.request import BackfillRequest, BackfillState, Output
from airflow_provider_exactlyonce.checkpoint.home_match import find_home
from airflow_provider_exactlyonce.cli.arguments import PIPELINE, SUBMISSION, declare
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer, tell
from airflow_provider_exactlyonce.cli.submission import environment, submit_command
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.status import progress_line
from airflow_provider_exactlyonce.control.supervision import Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.exceptions import AuditFailedError, DriverFailedError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from airflow_provider_exactlyonce.policies.termination import AVAILABLE
from airflow_provider_exactlyonce.streaming import settings
from airflow_provider_exactlyonce.text_tables import pairs


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "backfill",
        _backfill,
        summary="run a part of a pipeline's source again, beside the pipeline",
        details="The output goes into the sink or to another topic, or is compared with what was delivered. The same "
        "range, version and output are written once. A backfill that was killed goes on when it is called again. The "
        "pipeline may run meanwhile. Backfills of one pipeline take turns.",
        example="shop-totals --commits 3..7 --output compare",
        exit_codes={
            0: "done, now or before",
            1: "failed on the way; call it again and it goes on",
            69: "what was compared differs",
            130: "got Ctrl-C or SIGTERM, and its driver has stopped; call it again and it goes on",
        },
    )
    declare(command, *PIPELINE)
    command.add_argument("--application", metavar="JOB.py", help="the job's file (default: the version that runs)")
    spans = command.add_argument_group("range, one of these")
    spans.add_argument("--commits", metavar="A..B", help="the commits A to B")
    spans.add_argument("--offsets", metavar="JSON", help='source offsets: {"topic": {"0": [START, END]}}')
    spans.add_argument(
        "--watermark", metavar="FROM..TO", help="what was committed while the watermark went from one time to another"
    )
    spans.add_argument("--from", dest="start", metavar="TIME", help="records from this time on, by their timestamps")
    spans.add_argument("--to", dest="end", metavar="TIME", help="up to this time, exclusive")
    command.add_argument(
        "--state",
        choices=list(BackfillState),
        default=BackfillState.SAVEPOINT,
        help="savepoint: the state that the range began with (default); empty: none but that of --warm-up",
    )
    command.add_argument(
        "--warm-up",
        metavar="N|DURATION",
        help="with empty state: how much before the range is run without output; a number of commits, or for a range "
        "of time 90s, 30m, 2h or 1d",
    )
    command.add_argument(
        "--output",
        default=Output.COMPARE.value,
        metavar="reemit|compare|topic=NAME",
        help="reemit: into the sink itself, marked; compare: with what was delivered (default); topic: another topic",
    )
    declare(command, "--accept-nondeterminism", *SUBMISSION)


def _backfill(given: argparse.Namespace) -> None:
    request = BackfillRequest.parse(
        commits=given.commits,
        offsets=given.offsets,
        watermark=given.watermark,
        start=given.start,
        end=given.end,
        state=given.state,
        warm_up=given.warm_up,
        output=given.output,
    )
    config = reach.reached(given.bootstrap_servers)
    home = Home(given.home) if given.home else find_home(config, given.pipeline)
    backfill_home = workspace.make(home, given.pipeline, request)
    application = given.application or application_of(backfill_home, config)
    arguments = [
        "--home",
        str(backfill_home),
        *workspace.driver_arguments(accept_nondeterminism=given.accept_nondeterminism),
    ]
    conf = settings.pairs(given.conf)
    command = submit_command(application, arguments, master=given.master, conf=conf, packages=given.packages)
    launch = Launch(command=command, printable=" ".join(command), environment=environment(config, conf))
    result = _run(backfill_home, launch, given.application)
    print_answer(given, result, _text(result))
    if not result["clean"]:
        raise AuditFailedError(result["found"][0]["message"])


def _run(home: Home, launch: Launch, application: str | None) -> dict[str, Any]:
    supervisor = Supervisor(
        home,
        launch,
        Supervision(
            owner=owner_of(f"exactlyonce backfill {home.path.name}", application),
            until=AVAILABLE,
            strategy=RestartStrategy.fixed_delay(3, timedelta(seconds=1)),
        ),
    )
    with _interrupted_by_sigterm():
        try:
            for status in supervisor.run():
                tell(progress_line(status))
        except KeyboardInterrupt:
            supervisor.stop("interrupted")
            raise
    result = workspace.result_of(home)
    if result is None:
        output = supervisor.output.log if supervisor.output else "unknown"
        raise DriverFailedError(f"the driver ended without a result in {home}; its output: {output}")
    return result


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Make a Ctrl-C of SIGTERM: the driver has a session of its own, and would go on without us."""
    previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def _text(result: Mapping[str, Any]) -> str:
    hidden = ("source", "violations", "found", "clean")
    lines = [pairs({name: value for name, value in result.items() if name not in hidden})]
    for topic, partitions in result["source"].items():
        spans = ", ".join(f"{partition}: {start} to {end}" for partition, (start, end) in partitions.items())
        lines.append(f"{topic}, offsets by partition: {spans}")
    lines += [
        f"{violation['invariant']}, commit {violation['commit']}: {violation['message']}"
        for violation in result["found"]
    ]
    return "\n".join(lines)
