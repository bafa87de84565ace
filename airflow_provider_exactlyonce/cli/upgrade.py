"""The subcommands ``exactlyonce upgrade`` and ``exactlyonce rollback``."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.checkpoint.restore import check_restore
from airflow_provider_exactlyonce.cli.arguments import PIPELINE, SUBMISSION, declare, home_of
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.output import print_answer, tell
from airflow_provider_exactlyonce.cli.submission import environment, submit_command
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.upgrade_plan import Options, Plan
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.streaming import settings
from airflow_provider_exactlyonce.text_tables import pairs
from airflow_provider_exactlyonce.upgrade import shadow_run
from airflow_provider_exactlyonce.upgrade.begin import begin_rollback, begin_upgrade, what_to_compare
from airflow_provider_exactlyonce.upgrade.environment import UpgradeEnvironment
from airflow_provider_exactlyonce.upgrade.machine import Upgrade, facts_of, raise_outcome

_DEFAULTS: Final = Options()
_EXIT_CODES: Final = {
    0: "done, or there is nothing to do",
    1: "failed on the way; call it again and it goes on",
    65: "another one is under way",
    71: "the new version was not stable; the message says what runs now",
}


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "upgrade",
        _upgrade,
        summary="bring a pipeline to another version of its job, and back if that is not stable",
        details="It checks JOB.py against a savepoint, compares its output on the newest commits if asked to, stops "
        "the driver with a savepoint, starts that of JOB.py, and waits until it is stable. The driver then runs on. An "
        "upgrade that was killed goes on when it is called again.",
        example="shop-totals dags/jobs/shop_totals.py --shadow-commits 10",
        exit_codes=_EXIT_CODES,
    )
    declare(command, *PIPELINE, "job")
    command.add_argument("--dry-run", action="store_true", help="end before anything is changed")
    command.add_argument("--shadow-commits", type=int, default=0, metavar="K", help="repeat the newest K commits first")
    command.add_argument(
        "--compare",
        default="",
        metavar="COLUMNS",
        help="what the shadow run compares: columns separated by commas, or FILE.py:FUNCTION, which makes of a row "
        "what is compared, or None (default: the columns that both versions have)",
    )
    command.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="KIND[=N]",
        help="an intended difference: missing, extra, changed or changed.COLUMN, and at most how many; repeatable",
    )
    command.add_argument("--savepoint", default=True, metavar="LABEL", help="a label for the savepoint")
    command.add_argument(
        "--stable-after",
        type=int,
        default=_DEFAULTS.stable_after,
        metavar="M",
        help="how many commits make the new version stable (default: %(default)s)",
    )
    command.add_argument(
        "--stable-timeout",
        type=float,
        default=_DEFAULTS.stable_timeout,
        metavar="SECONDS",
        help="how long that may take (default: %(default)g)",
    )
    command.add_argument(
        "--on-unstable",
        choices=("rollback", "fail"),
        default=_DEFAULTS.on_unstable,
        help="start the old version again (default), or leave the new one as it is",
    )
    _add_common(command)
    rollback = program.add_command(
        "rollback",
        _rollback,
        summary="bring a pipeline back to an earlier version",
        details="It stops the driver, restores a savepoint, and starts the version of which the savepoint was taken "
        "from the copy in the home. What was committed since is replayed without writing it again. By default that is "
        "the version which the last upgrade has replaced.",
        example="shop-totals",
        exit_codes=_EXIT_CODES,
    )
    declare(rollback, *PIPELINE)
    rollback.add_argument("--to-savepoint", metavar="ID", help="the savepoint to go back to")
    rollback.add_argument(
        "--to-version", metavar="VERSION", help="the version to go back to, from its newest savepoint"
    )
    _add_common(rollback)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stop-timeout",
        type=float,
        default=_DEFAULTS.stop_timeout,
        metavar="SECONDS",
        help="how long a driver may take to end its batch (default: %(default)g)",
    )
    declare(parser, "--accept-nondeterminism", *SUBMISSION)
    parser.add_argument(
        "--job-argument", action="append", default=[], metavar="ARG", help="a further argument of the job; repeatable"
    )


def _upgrade(given: argparse.Namespace) -> None:
    home, (columns, function) = home_of(given), what_to_compare(given.compare)
    options = Options(
        savepoint=given.savepoint,
        shadow_commits=given.shadow_commits,
        compare=columns,
        function=function,
        allow=_allowances(given.allow),
        stable_after=given.stable_after,
        stable_timeout=given.stable_timeout,
        on_unstable=given.on_unstable,
        stop_timeout=given.stop_timeout,
        accept_nondeterminism=given.accept_nondeterminism,
    )
    plan = begin_upgrade(home, given.pipeline, given.job, options, request=uuid.uuid4().hex[:16], dry_run=given.dry_run)
    _carry_out(given, home, plan, dry_run=given.dry_run)


def _rollback(given: argparse.Namespace) -> None:
    home = home_of(given)
    options = Options(stop_timeout=given.stop_timeout, accept_nondeterminism=given.accept_nondeterminism)
    plan = begin_rollback(
        home,
        given.pipeline,
        options,
        request=uuid.uuid4().hex[:16],
        check=partial(check_restore, home, given.pipeline, reach.reached(given.bootstrap_servers)),
        version=given.to_version,
        savepoint=given.to_savepoint,
    )
    _carry_out(given, home, plan, dry_run=False)


def _carry_out(given: argparse.Namespace, home: Home, plan: Plan, *, dry_run: bool) -> None:
    config, conf = reach.reached(given.bootstrap_servers), settings.pairs(given.conf)

    def launch(file: str, arguments: Sequence[str]) -> Launch:
        command = submit_command(file, arguments, master=given.master, conf=conf, packages=given.packages)
        return Launch(
            command=command, printable=f"{Path(file).name} with {given.master}", environment=environment(config, conf)
        )

    tools = UpgradeEnvironment(
        config=lambda: config, launch=launch, driver_arguments=given.job_argument, conf=conf, tell=tell
    )
    finished = Upgrade(home, plan, tools, dry_run=dry_run).run()
    facts = facts_of(finished)
    shown = {name: value for name, value in facts.items() if name not in ("check", "shadow")}
    text = pairs(shown) + (f"\n\n{shadow_run.text(finished.shadow)}" if finished.shadow else "")
    print_answer(given, facts, text)
    raise_outcome(finished)


def _allowances(items: Sequence[str]) -> dict[str, int | None]:
    """Read the differences that are intended.

    :param items: ``KIND`` or ``KIND=N`` each
    :raises RefusedError: when N is no number
    """
    allowed: dict[str, int | None] = {}
    for item in items:
        kind, _, number = item.partition("=")
        if number and not number.isdecimal():
            raise RefusedError(f"allowed difference {item!r}: {number!r} is no number of rows")
        allowed[kind] = int(number) if number else None
    return allowed
