"""What is required of a ledger's topic."""

from __future__ import annotations

import pytest

from airflow_provider_exactlyonce.exceptions import SettingRefusedError
from airflow_provider_exactlyonce.kafka.topic_settings import check_settings
from airflow_provider_exactlyonce.ledger.topic import REQUIREMENTS

GOOD = {
    "cleanup.policy": "compact",
    "max.message.bytes": "8388608",
    "min.compaction.lag.ms": "600000",
    "max.compaction.lag.ms": "9223372036854775807",
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "1",
}


def test_the_settings_of_a_ledger_that_was_created_here_are_accepted() -> None:
    check_settings("topic ledger", GOOD, 1, REQUIREMENTS)
    check_settings("topic ledger", GOOD | {"min.insync.replicas": "2"}, 3, REQUIREMENTS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "delete"),
        ("cleanup.policy", "compact,delete"),
        ("max.message.bytes", "1048588"),
        ("min.compaction.lag.ms", "0"),
        ("unclean.leader.election.enable", "true"),
        ("min.insync.replicas", "1"),
    ],
)
def test_a_setting_that_would_lose_records_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingRefusedError, match=f"{name} of topic ledger is '{value}'; it must be "):
        check_settings("topic ledger", GOOD | {name: value}, 3, REQUIREMENTS)
