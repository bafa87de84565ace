"""Whether a new version is stable, by its commits: running is not enough."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.control import drivers, exit_classification
from airflow_provider_exactlyonce.control.driver_output import DriverOutput
from airflow_provider_exactlyonce.control.drivers import FailureDetector
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.processes import Ended
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.control.upgrade_plan import Plan
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.ledger import records
from airflow_provider_exactlyonce.ledger.reader import tail_of
from airflow_provider_exactlyonce.ledger.source_clusters import FindConnection, SourceClusters
from airflow_provider_exactlyonce.tables.positions import distance

#: A transaction of the pipeline that is open for longer speaks against it, though it commits now and then.
_OPEN_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class StabilityReport:
    """The observations of a driver that should become stable.

    :param commits: how many it has made
    :param lag: source records, and versions of source tables, that are not committed
    :param stable: why it is stable, None while it isn't
    :param unstable: why it is unstable, None while it isn't
    """

    commits: int
    lag: int
    stable: str | None = None
    unstable: str | None = None


def look(
    home: Home,
    plan: Plan,
    config: Mapping[str, Any],
    find: FindConnection | None = None,
    *,
    detector: FailureDetector | None = None,
) -> StabilityReport:
    """Look at the driver that a plan has started.

    :param config: client configuration in librdkafka's names
    :param find: gives the configuration of a connection that a source names
    :param detector: kept by a caller that polls
    :raises ExactlyOnceError: when a cluster does not answer
    """
    detector = detector or FailureDetector(home)
    token, required = str(plan.token), plan.options.stable_after
    status = exit_classification.status_of(home, token)
    if not detector.is_there(token):
        return StabilityReport(commits=0, lag=0, unstable=f"its driver ended: {how_it_ended(home, plan, detector)}")
    lag = lag_of(plan.pipeline, config, find)
    commits = status.commits_of_run if status is not None else 0
    is_running = status is not None and status.state is DriverState.RUNNING
    report = partial(StabilityReport, commits=commits, lag=lag)
    peak = max(plan.lag_peak, lag) if commits == 0 else plan.lag_peak
    if is_running and commits >= required and lag <= peak and _open_seconds(plan.pipeline, config) <= _OPEN_SECONDS:
        return report(stable=f"{commits} commits, {lag:,} source records to go")
    if time.time() - plan.entered < plan.options.stable_timeout:
        return report()
    if is_running and lag == 0:
        return report(stable=f"{commits} commits, and nothing is left to commit")
    state = status.state.value if status is not None else "without an account"
    return report(
        unstable=f"within {plan.options.stable_timeout:g} s it made {commits} of {required} commits; it is {state}, "
        f"{lag:,} source records are not committed ({plan.lag_peak:,} when it started)"
    )


def how_it_ended(home: Home, plan: Plan, detector: FailureDetector) -> str:
    """Return why the driver that a plan has started ended, with the end of its output."""
    if detector.is_lost(str(plan.token)):
        return f"{drivers.describe(home, plan.token)} gives no sign of life"
    output = DriverOutput(home, str(plan.token), Path(str(plan.log)))
    error = exit_classification.failure(home, str(plan.token), Ended(exit_code=None), output)
    cause = str(error) if error is not None else "it was stopped"
    return f"{cause}\n{tail}" if (tail := exit_classification.log_tail(output)) else cause


def lag_of(pipeline: str, config: Mapping[str, Any], find: FindConnection | None = None) -> int:
    """Return how many source records, and versions of tables, that can be read the last commit has not.

    :param config: client configuration in librdkafka's names
    :param find: gives the configuration of a connection that a source names
    :raises ExactlyOnceError: when a cluster does not answer
    """
    from confluent_kafka import KafkaException

    try:
        tail = tail_of(config, pipeline)
        if tail is None or tail.commit is None:
            return 0
        offsets = SourceClusters.claimed(config, tail.claim, find).offsets
        ends = offsets.last_stable(offsets.partitions(tail.commit.source))
    except KafkaException as error:
        raise ExactlyOnceError(f"how far {pipeline} is can't be seen: {error.args[0]}") from error
    committed_ends = tail.commit.ends
    return sum(distance(partition[0], committed_ends.get(partition, 0), end) for partition, end in ends.items())


def _open_seconds(pipeline: str, config: Mapping[str, Any]) -> float:
    """Return for how long the pipeline's transaction is open, 0 when none is."""
    from airflow_provider_exactlyonce.kafka.cluster_transactions import Transactions
    from airflow_provider_exactlyonce.kafka.wire import UnansweredError, WireClient

    try:
        with WireClient(dict(config)) as client:
            transaction = Transactions(client).describe(records.transactional_id(pipeline))
    except UnansweredError as error:
        raise ExactlyOnceError(f"the transactions of {pipeline} can't be seen: {error}") from error
    return (transaction.age_seconds() or 0.0) if transaction is not None and transaction.is_open else 0.0
