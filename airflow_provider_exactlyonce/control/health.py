"""Judges whether a pipeline is well, by :class:`~airflow_provider_exactlyonce.policies.health_rules.HealthRules`."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_exactlyonce.control import exit_classification
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.status import ENDED
from airflow_provider_exactlyonce.policies.health_rules import HealthRules
from airflow_provider_exactlyonce.policies.restart_strategy import Outage


def stuck(home: Home, intent: Intent, rules: HealthRules, now: float) -> str | None:
    """Return what is wrong with a driver that should commit, None when nothing is.

    :param now: seconds since the epoch
    """
    if rules.no_commit_within is None:
        return None
    allowed = rules.no_commit_within.total_seconds()
    status = exit_classification.status_of(home, intent.token)
    if status is not None and status.state in ENDED:
        return None
    if status is None or status.progressed == 0:
        since, what = intent.written, "since the driver was started"
    else:
        lag = "unknown" if status.lag is None else f"{status.lag:,}"
        since, what = status.progressed, f"after commit {status.commit}, lag {lag}"
    if now - since <= allowed:
        return None
    return f"no commit for {now - since:.0f} s {what}; no_commit_within is {allowed:g} s"


def too_many_restarts(past: Sequence[Outage], died: float, rules: HealthRules) -> str | None:
    """Return what is wrong when a driver has died once more, None when nothing is.

    :param past: earlier outages
    :param died: seconds since the epoch
    """
    if rules.max_restarts is None:
        return None
    window = rules.restart_window.total_seconds()
    recent = 1 + sum(died - outage.died <= window for outage in past)
    if recent <= rules.max_restarts:
        return None
    return f"{recent} drivers died within {window:g} s; max_restarts is {rules.max_restarts}"
