"""The idempotent sink alone in a query, without a Kafka sink, killed where it has written and not committed."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from decimal import Decimal

import pytest

from tests.integration.streaming.harness import World, check_ledger
from tests.postgres import PostgresServer


@pytest.mark.slow
def test_recovery_leaves_no_row_twice_and_none_out(
    world: World, postgres: PostgresServer, database: Mapping[str, str]
) -> None:
    with postgres.connect(database) as connection:
        connection.execute('CREATE TABLE totals (k text PRIMARY KEY, total numeric, n bigint, "commit" bigint)')
    world.job = "upserts.py"
    url = f"postgresql+psycopg://postgres@/{database['dbname']}?host={database['host']}"
    world.send(300)
    for step in ("after-sink-pre-commit:batch=0", "after-sink-commit:batch=1"):
        driver = world.start(environment={"TEST_URL": url}, failpoints=step)
        assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-3000:]}"
    last = world.start(environment={"TEST_URL": url})
    assert last.wait() == 0, last.output()[-3000:]
    ids = {f"k{key}": range(key, 300, 37) for key in range(37)}
    expected = {key: (sum(Decimal(number) / 100 for number in of), len(of)) for key, of in ids.items()}
    with postgres.connect(database) as connection:
        totals = {k: (total, n) for k, total, n in connection.execute("SELECT k, total, n FROM totals")}
        numbers = [of for (of,) in connection.execute("SELECT number FROM exactlyonce_commits ORDER BY number")]
    assert totals == expected
    commits = check_ledger(world)
    assert numbers == [commit.commit for commit in commits]
    assert all(commit.rows == 0 and commit.others["table"].rows > 0 for commit in commits)
