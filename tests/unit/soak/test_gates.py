"""A gate that opens too early, fails, or never opens is found; one that opens in time is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from psycopg import OperationalError

from tests.soak import gates, names
from tests.soak.gates import Gates
from tests.soak.journal import Journal
from tests.soak.judge import Finding


class Fake:
    """Airflow and a table, as far as gates are concerned."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.readable = 0
        self.is_away = False
        self.found: list[Finding] = []

    def trigger(self, dag: str, run_id: str, **conf: Any) -> None:
        assert dag == "soak-gate"
        assert conf["pipeline"] in names.PIPELINES
        self.states[run_id] = "running"

    def state(self, run_id: str) -> str | None:
        return self.states.get(run_id)

    def look(self) -> int:
        if self.is_away:
            raise OperationalError("killed")
        return self.readable


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def made(fake: Fake, tmp_path: Path) -> Gates:
    promised = dict.fromkeys(names.PIPELINES, lambda: 50)
    tables = dict.fromkeys(names.PIPELINES, fake)
    return Gates(cast(Any, fake), promised, cast(Any, tables), Journal(tmp_path), fake.found.extend)


def test_a_gate_that_opens_when_all_can_be_read_is_right(made: Gates, fake: Fake) -> None:
    since = made.start_one()
    made.look()
    assert made.recovered(since) is None
    fake.states["gate-1"], fake.readable = "success", 50
    made.look()
    assert (made.recovered(since) or 0) > 0
    assert made.recovered(since + 60) is None
    assert fake.found == []


def test_a_gate_that_opens_too_early_is_found(made: Gates, fake: Fake) -> None:
    made.start_one()
    fake.states["gate-1"], fake.readable = "success", 49
    made.look()
    [finding] = fake.found
    assert "all before 49 could be read" in finding.note


def test_what_a_gate_promised_is_looked_at_once_the_table_is_back(made: Gates, fake: Fake) -> None:
    made.start_one()
    fake.states["gate-1"], fake.is_away = "success", True
    made.look()
    assert fake.found == []
    fake.is_away = False
    made.look()
    assert len(fake.found) == 1


def test_a_gate_that_fails_or_never_opens_is_found(made: Gates, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        made.start_one()
    fake.states["gate-1"] = "failed"
    monkeypatch.setattr(gates, "PATIENCE_SECONDS", 0.0)
    made.look()
    made.finish()
    assert [finding.note.rpartition(": ")[2] for finding in fake.found] == ["its task has failed", "it never opened"]
