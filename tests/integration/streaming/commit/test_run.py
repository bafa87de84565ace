"""Steps (a) to (c) of a run's start against a real broker: what is refused is refused before anybody is fenced."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.control import json_store, lease
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import (
    AlreadyRunningError,
    BatchFailedError,
    ExactlyOnceError,
    FencedError,
    RefusedError,
)
from airflow_provider_exactlyonce.kafka import record_batch
from airflow_provider_exactlyonce.kafka.transaction import ProducerLostError, SessionState, produce
from airflow_provider_exactlyonce.ledger import topic
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from tests.integration.streaming.harness import World, open_transactions, read_committed
from tests.waiting import eventually


@contextmanager
def run_of(
    world: World,
    home: Path,
    token: str = "t",
    *,
    accept_home: bool = False,
    transaction_timeout_milliseconds: int = 60_000,
) -> Iterator[Run]:
    options = RunOptions(
        config=dict(world.config),
        token=token,
        version="v",
        transaction_timeout_milliseconds=transaction_timeout_milliseconds,
        accept_home=accept_home,
    )
    run = Run(Home(home), world.pipeline, options)
    try:
        yield run
    finally:
        run.close()


def test_runs_are_counted_and_claimed_in_the_ledger(world: World) -> None:
    for number in (1, 2, 3):
        with run_of(world, world.home, f"t{number}") as run:
            run.start()
            assert run.number == number
            assert run.tail.claim is not None
            assert (run.tail.claim.token, run.tail.claim.home_path) == (f"t{number}", str(world.home.resolve()))
    assert open_transactions(world.config, ledger_topic(world.pipeline)) == {}


def test_the_same_pipeline_from_an_empty_home_is_refused_and_the_live_run_goes_on(world: World, tmp_path: Path) -> None:
    with run_of(world, world.home) as live:
        live.start()
        with run_of(world, tmp_path / "typo", "other") as mistake, pytest.raises(RefusedError, match="is empty, but"):
            mistake.start()
        assert not (tmp_path / "typo").exists()
        live.session.begin()
        live.session.abort()


def test_a_copy_of_the_home_is_refused_and_the_live_run_goes_on(world: World, tmp_path: Path) -> None:
    with run_of(world, world.home) as live:
        live.start()
        shutil.copytree(world.home, tmp_path / "copy")
        (tmp_path / "copy/control/lease.json").unlink()
        with (
            run_of(world, tmp_path / "copy", "other") as mistake,
            pytest.raises(RefusedError, match="is a copy: run 1"),
        ):
            mistake.start()
        live.session.begin()
        live.session.abort()


def test_a_home_that_was_moved_on_purpose_is_accepted_once_and_for_all(world: World, tmp_path: Path) -> None:
    with run_of(world, world.home) as run:
        run.start()
    shutil.move(world.home, tmp_path / "moved")
    with run_of(world, tmp_path / "moved", "second", accept_home=True) as run:
        run.start()
    with run_of(world, tmp_path / "moved", "third") as run:
        run.start()
        assert run.number == 3


def test_another_pipelines_home_is_refused(world: World) -> None:
    with run_of(world, world.home) as run:
        run.start()
    json_store.write(world.home / "home.json", {"schema": 1, "id": "x", "pipeline": "other"})
    with run_of(world, world.home) as run, pytest.raises(RefusedError, match="home of pipeline other"):
        run.start()


def test_a_lineage_that_is_not_current_is_refused(world: World) -> None:
    with run_of(world, world.home) as run:
        run.start()
        first = run.lineage.id
    (world.home / "current").unlink()
    Home(world.home).create(world.pipeline)
    with run_of(world, world.home, "second") as run, pytest.raises(RefusedError, match=f"went on in lineage {first}"):
        run.start()


def test_a_deleted_and_a_recreated_ledger_are_refused(world: World) -> None:
    with run_of(world, world.home) as run:
        run.start()
    admin = AdminClient(dict(world.config))
    name = ledger_topic(world.pipeline)
    admin.delete_topics([name])[name].result()
    eventually(lambda: name not in admin.list_topics().topics, f"{name} is deleted")
    with run_of(world, world.home, "second") as run, pytest.raises(RefusedError, match="was deleted"):
        run.start()
    topic.ensure(world.config, world.pipeline)
    with run_of(world, world.home, "third") as run, pytest.raises(RefusedError, match="was recreated"):
        run.start()


def test_a_ledger_topic_that_would_lose_records_is_refused(world: World) -> None:
    name = ledger_topic(world.pipeline)
    admin = AdminClient(dict(world.config))
    admin.create_topics([NewTopic(name, 1, config={"cleanup.policy": "delete"})])[name].result()
    with run_of(world, world.home) as run, pytest.raises(RefusedError, match=r"cleanup\.policy .* must be 'compact'"):
        run.start()


def test_a_transaction_that_the_broker_does_not_allow_is_refused_before_anybody_is_fenced(world: World) -> None:
    with (
        run_of(world, world.home, transaction_timeout_milliseconds=86_400_000) as run,
        pytest.raises(RefusedError, match=r"transaction\.max\.timeout\.ms"),
    ):
        run.start()
    with run_of(world, world.home) as run:
        assert run.check() is None, "there is no ledger yet, and no claim in it"


def test_a_living_driver_is_not_fenced(world: World) -> None:
    with run_of(world, world.home, "first") as live:
        live.start()
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(0.5):
                live.renew_lease()

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            with (
                run_of(world, world.home, "second") as second,
                pytest.raises(AlreadyRunningError, match="runs already: run 1"),
            ):
                second.start()
        finally:
            ended.set()
            thread.join()
        live.session.begin()
        live.session.abort()


def test_a_silent_driver_is_fenced_and_finds_out_who_did_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", 1.0)
    with run_of(world, world.home, "first") as silent, run_of(world, world.home, "second") as successor:
        silent.start()
        _fall_silent(world)
        successor.start()
        assert successor.number == 2
        assert not silent.renew_lease()
        with pytest.raises(ProducerLostError):
            silent.session.begin()
        assert silent.session.state is SessionState.LOST
        with pytest.raises(FencedError, match=f"pid {os.getpid()}"):
            silent.reclaim()
        successor.session.begin()
        successor.session.abort()


def test_a_driver_that_was_found_silent_is_not_watched_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", 1.0)
    with run_of(world, world.home, "first") as silent, run_of(world, world.home, "second") as successor:
        silent.start()
        _fall_silent(world)
        successor.check()
        monkeypatch.delattr(lease, "observe")
        successor.start()
        assert successor.number == 2


def test_a_straggler_of_an_aborted_attempt_is_fenced_and_its_records_are_never_visible(world: World) -> None:
    with run_of(world, world.home) as run:
        run.start()
        run.session.begin()
        run.session.abort()
        session, old = run.session, run.session.producer
        assert run.client.add_partitions(session.transactional_id, old, world.sink, [0]) == 0, "it opens a transaction"
        late = record_batch.encode_few([(b"k", b"late")], 0)
        stamped = b"".join(record_batch.with_header(late, producer_id=old.id, epoch=old.epoch, base_sequence=0))
        assert produce(run.client, session.transactional_id, world.sink, {0: stamped}) == {0: 0}
        try:
            session.begin()
        except ProducerLostError:
            run.reclaim()
            session.begin()
        assert run.number == 1
        with pytest.raises(BatchFailedError, match="INVALID_PRODUCER_EPOCH"):
            produce(run.client, session.transactional_id, world.sink, {0: stamped})
        session.abort()
        assert read_committed(world.config, world.sink) == []
        assert open_transactions(world.config, world.sink) == {}


def test_of_many_drivers_that_start_at_once_one_holds_the_pipeline(world: World) -> None:
    holders: list[Run] = []
    refused: list[ExactlyOnceError] = []

    ended = threading.Event()

    def beat(run: Run) -> None:
        while not ended.wait(0.3):
            run.renew_lease()

    def start(token: str) -> None:
        options = RunOptions(
            config=dict(world.config), token=token, version="v", transaction_timeout_milliseconds=60_000
        )
        run = Run(Home(world.home), world.pipeline, options)
        threading.Thread(target=beat, args=(run,)).start()
        try:
            run.start()
            holders.append(run)
        except ExactlyOnceError as error:
            refused.append(error)
            run.close()

    threads = [threading.Thread(target=start, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    able = []
    for run in holders:
        try:
            run.session.begin()
            able.append(run)
        except ProducerLostError:
            pass
    try:
        assert len(able) == 1, f"{len(able)} of {len(holders)} can write; refused: {refused}"
        assert able[0].number == max(run.number for run in holders)
        able[0].session.abort()
        held = lease.read(Home(world.home).lease)
        assert held is not None
        assert held.token == able[0].options.token, "the highest run has the lease"
    finally:
        ended.set()
        for run in holders:
            run.close()


def _fall_silent(world: World) -> None:
    path = Home(world.home).lease
    held = json_store.read(path)
    assert held is not None
    json_store.write(path, {**held, "heartbeat": held["heartbeat"] - 2 * lease.STALE_SECONDS})
