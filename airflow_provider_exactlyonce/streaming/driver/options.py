"""A driver's options: from its command line and its environment."""

from __future__ import annotations

import argparse
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from airflow_provider_exactlyonce.control import standbys
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka import config as kafka_config
from airflow_provider_exactlyonce.policies.termination import FOREVER, FORMS, target_of
from airflow_provider_exactlyonce.storage import s3_environment
from airflow_provider_exactlyonce.streaming import settings

#: What a driver's exit codes mean.
EXIT_CODES: Final[Mapping[int, str]] = {
    0: "everything that was asked for is committed, or a stop was asked for",
    1: "failed; it may be tried again",
    64: "refused; nothing was changed",
    65: "another driver holds the pipeline, or with --standby another standby waits",
    66: "a higher run has taken over",
    67: "a record can't be processed",
    68: "a batch took longer than its transaction may",
    70: "the bookkeeping of the protocol contradicts itself",
    72: "source records that were not read yet are gone",
}
_ABOUT: Final = """{variable} has the brokers, or the whole Kafka configuration as JSON, in librdkafka's names.

example:
  {program} --home .exactlyonce/home --bootstrap-servers localhost:9092 --until available

exit codes:
{codes}
  `exactlyonce help exit-codes` says more"""


@dataclass(frozen=True, kw_only=True)
class DriverOptions:
    """The options of a driver.

    :param until: ``available`` ends when all that was available at the start is committed; ``forever`` doesn't end;
        others end at a target, see :mod:`airflow_provider_exactlyonce.policies.termination`
    :param goal: name under which the target is kept for later starts of the same run
    :param standby: wait, ready to run, for the end of the driver that holds the pipeline, if one does
    :param supervisor: pid and start time of the process that supervises this standby, None without one
    :param backfill: the home is a backfill's, which is run and ends
    :param interval: Spark's processing-time trigger, except for ``available``; None for the pipeline's own
    """

    home: Home
    config: dict[str, str] = field(repr=False)
    token: str
    until: str = FOREVER
    goal: str | None = None
    interval: str | None = None
    accept_home: bool = False
    allow_single_replica: bool = False
    accept_nondeterminism: bool = False
    allow_empty_state: bool = False
    standby: bool = False
    supervisor: str | None = None
    backfill: bool = False


def add_arguments(add: Callable[..., object]) -> None:
    """Declare the arguments of the command line.

    :param add: :meth:`argparse.ArgumentParser.add_argument`, or a substitute
    """
    add(
        "--home",
        required=True,
        metavar="DIR",
        help="the pipeline's home, a directory or a URL of s3:, gs:, abfss: or hdfs:; made if absent",
    )
    add(
        "--until",
        default=FOREVER,
        help=f"{FORMS}; available: end when all that is available now is committed (default: forever)",
    )
    add("--goal", metavar="NAME", help="name under which the target of --until is kept for the run's later starts")
    add("--interval", metavar="TIME", help="trigger interval (default: the job's, or as soon as there is data)")
    add("--bootstrap-servers", metavar="HOST:PORT", help=f"Kafka brokers, instead of {settings.KAFKA_VARIABLE}")
    add("--accept-home", action="store_true", help="the home was moved on purpose; it replaces the one in the ledger")
    add(
        "--allow-single-replica",
        action="store_true",
        help="accept topics with one replica on a cluster of several brokers, for development",
    )
    add(
        "--accept-nondeterminism",
        action="store_true",
        help="replayed commits may give other rows than were committed: the state then differs from the output",
    )
    add(
        "--allow-empty-state",
        action="store_true",
        help="if checkpoint and savepoints are lost, go on with empty state after the last commit",
    )
    add(
        "--standby",
        choices=[standbys.WARM],
        metavar=standbys.WARM,
        help="if another driver holds the pipeline: make Spark ready, wait until that driver is lost, and take over",
    )
    add("--backfill", action="store_true", help="run the backfill that --home is of (started by exactlyonce backfill)")


class _Parser(argparse.ArgumentParser):
    """Refuses a wrong command line: argparse's own exit code, 2, would be a failure that a supervisor tries again."""

    def error(self, message: str) -> NoReturn:
        raise RefusedError(f"arguments of the driver: {message}; `exactlyonce help options` lists what it takes")


def parse_arguments(name: str, arguments: Sequence[str] | None) -> DriverOptions:
    """Read the command line and the environment.

    :raises RefusedError: when the command line is wrong, the Kafka configuration is missing, or one in a file can't be
        read
    """
    parser = _Parser(description=f"Run pipeline {name}.", formatter_class=argparse.RawDescriptionHelpFormatter)
    codes = "\n".join(f"  {code:>2}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser.epilog = _ABOUT.format(variable=settings.KAFKA_VARIABLE, program=parser.prog, codes=codes)
    add_arguments(parser.add_argument)
    given = parser.parse_args(arguments)
    try:
        target_of(given.until)
    except ValueError as error:
        raise RefusedError(str(error)) from error
    if given.standby and given.backfill:
        raise RefusedError("--standby warm is not for a backfill: its range has an end, and a restart goes on there")
    s3_environment.take_up()
    return DriverOptions(
        home=Home(given.home),
        config=kafka_config.from_environment(given.bootstrap_servers),
        token=os.environ.get(settings.TOKEN_VARIABLE) or str(uuid.uuid4()),
        until=given.until,
        goal=given.goal,
        interval=given.interval,
        accept_home=given.accept_home,
        allow_single_replica=given.allow_single_replica,
        accept_nondeterminism=given.accept_nondeterminism,
        allow_empty_state=given.allow_empty_state,
        standby=given.standby is not None,
        supervisor=os.environ.get(standbys.SUPERVISOR_VARIABLE),
        backfill=given.backfill,
    )
