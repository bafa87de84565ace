"""A start that is frozen while the pipeline is restored, at each place where that matters; on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.checkpoint import lineages
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError
from airflow_provider_exactlyonce.ledger import topic
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions


class Pipeline:
    """One that has run once, and is stopped."""

    def __init__(self, config: Mapping[str, str], name: str, folder: Path) -> None:
        self.config, self.name, self.home = config, name, Home(str(folder / "home"))
        with self.run("first") as run:
            run.start()
            self.first, self.tail = run.lineage, run.tail
        (self.home.path / "saved/offsets").mkdir(parents=True)
        (self.home.path / "saved/offsets/0").write_text("v1")

    @contextmanager
    def run(self, token: str) -> Iterator[Run]:
        options = RunOptions(
            config=dict(self.config), token=token, version="v", transaction_timeout_milliseconds=60_000
        )
        run = Run(self.home, self.name, options)
        try:
            yield run
        finally:
            run.close()

    def restore(self, name: str = "restored") -> None:
        """Restore it, as one does that finds the holder of the lease silent."""
        known = self.tail
        assert known.claim is not None
        lineage = Lineage(
            id=name,
            cluster_id=known.cluster_id,
            ledger_topic_id=known.topic_id,
            parent=self.first.id,
            parent_run=known.claim.run,
            parent_commit=known.place.commit,
        )
        with leases.holding(self.home.lease, self.name, "a restore", leases.read(self.home.lease)) as hold:
            lineages.make(self.home.lineages / name, self.home.path / "saved", ["offsets/0"], lineage)
            lineages.switch(self.home, lineage, hold)

    def in_use(self) -> str:
        current = self.home.current()
        assert current is not None
        assert current.abandoned_for is None
        return current.id


@pytest.fixture
def stopped(kafka_config: Mapping[str, str], make_topic: Callable[..., str], tmp_path: Path) -> Pipeline:
    return Pipeline(kafka_config, f"p-{make_topic(partitions=1)}", tmp_path)


def test_a_start_that_froze_before_it_took_the_lease_gives_way_to_a_restore_that_is_at_work(stopped: Pipeline) -> None:
    with stopped.run("second") as run:
        check = run.check

        def frozen() -> None:
            check()
            leases.acquire(stopped.home.lease, stopped.name, "a restore")

        run.check = frozen  # type: ignore[method-assign]
        with pytest.raises(AlreadyRunningError, match=f"has taken pipeline {stopped.name} meanwhile"):
            run.start()
    held = leases.read(stopped.home.lease)
    assert held is not None
    assert held.token == "a restore"


def test_a_start_that_froze_before_its_claim_gives_way_to_a_restore_and_the_next_start_runs_that(
    stopped: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure = topic.ensure

    def frozen(config: Mapping[str, str], pipeline: str, *, is_new: bool) -> None:
        ensure(config, pipeline, is_new=is_new)
        stopped.restore()

    with stopped.run("second") as run, monkeypatch.context() as freezing:
        freezing.setattr(topic, "ensure", frozen)
        with pytest.raises(AlreadyRunningError, match="another process has taken pipeline"):
            run.start()
    assert stopped.in_use() == "restored"
    with stopped.run("third") as run:
        run.start()
        assert (run.number, run.lineage.id) == (2, "restored")


def test_a_start_that_froze_in_its_claim_outranks_a_restore_and_goes_on_where_the_ledger_says(
    stopped: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stopped.run("second") as run:
        write = run.session.write

        def frozen(*given: object) -> int:
            stopped.restore()
            assert stopped.home.uses("restored")
            monkeypatch.undo()
            return write(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(run.session, "write", frozen)
        run.start()
        assert stopped.in_use() == stopped.first.id
        held = leases.read(stopped.home.lease)
        assert held is not None
        assert (held.token, held.run) == ("second", 2)
    with stopped.run("third") as run:
        run.start()
        assert (run.number, run.lineage.id) == (3, stopped.first.id)
