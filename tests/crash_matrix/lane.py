"""Takes worlds of cases through their faults, on a broker of its own."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.ledger.records import ClaimRecord
from tests.crash_matrix.cases import LONG_TIMEOUT_SECONDS, Case, Fault, Life, lives
from tests.crash_matrix.pipeline import HangingError, Pipeline
from tests.crash_matrix.shapes import NO_DATA
from tests.crash_matrix.verdict import Findings
from tests.waiting import HANG_SECONDS

_BURST = (40, 120)
_PROBE = 30


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one case.

    :param verdict: recovered, lost, doubled, torn or hanging
    :param seconds: what it took, its share of the driver's start included
    :param held_seconds: after a driver's death with an open transaction: from the restart's claim until nothing was
        hidden from other readers any more
    """

    index: int
    shape: str
    point: str
    fault: str
    verdict: str
    seconds: float
    held_seconds: float | None = None
    detail: str = ""


def verdict_of(findings: Findings) -> str:
    """Name the worst of what was found."""
    for name in ("lost", "torn", "doubled"):
        if getattr(findings, name):
            return name
    return "lost" if findings else "recovered"


class Lane:
    """One broker, and one world at a time on it.

    :param folder: for the broker's data, homes and logs
    :param report: called with every result
    :param make: makes a pipeline
    :param goes_on: a world goes on after a run that did not recover
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        report: Callable[[Result], None],
        *,
        make: Callable[..., Pipeline] = Pipeline,
        goes_on: bool = False,
    ) -> None:
        self.name, self.folder = name, folder
        self._report = report
        self._make, self._goes_on = make, goes_on
        self._broker = EmbeddedBroker(folder / "broker", heap_megabytes=384)
        self._worlds = 0

    def __enter__(self) -> Lane:
        self._broker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.stop()

    def run(self, cases: Sequence[Case]) -> None:
        """Take one world's cases through; what fails is reported, and the others go on in a new world."""
        left = list(cases)
        while left:
            self._worlds += 1
            name = f"{self.name}-{self._worlds}"
            config = {"bootstrap.servers": self._broker.bootstrap_servers}
            pipeline = self._make(config=config, name=name, shape=left[0].shape, folder=self.folder / name)
            world = _World(pipeline, self._broker, self._report, goes_on=self._goes_on)
            try:
                world.run(lives(left))
            except (HangingError, AssertionError, OSError) as error:
                detail = f"{error}; logs in {pipeline.folder}\n{traceback.format_exc(limit=-3)}"
                world.tell(world.current or left[0], "hanging", detail)
            finally:
                pipeline.close()
            if not self._broker.is_running:
                self._broker.start()
            left = [case for case in left if case.index not in world.told]
            if not world.failed:
                shutil.rmtree(pipeline.folder, ignore_errors=True)


class _World:
    """One pipeline's way through its lives."""

    def __init__(
        self, pipeline: Pipeline, broker: EmbeddedBroker, report: Callable[[Result], None], *, goes_on: bool
    ) -> None:
        self._pipeline, self._broker, self._report = pipeline, broker, report
        self._goes_on = goes_on
        self.told: set[int] = set()
        self.failed = False
        self.current: Case | None = None
        self._dead: list[Case] = []  # their drivers are dead; the next that goes on decides
        self._held_seconds: float | None = None
        self._began = time.monotonic()

    def run(self, planned: Sequence[Life]) -> None:
        """Take the pipeline through its lives.

        :raises HangingError: when something does not come
        """
        for life in planned:
            self._live(life)
            if self.failed and not self._goes_on:
                return
        self._pipeline.stop()

    def tell(self, case: Case, verdict: str, detail: str = "", held_seconds: float | None = None) -> None:
        """Report one case."""
        self.told.add(case.index)
        self.failed = self.failed or verdict != "recovered"
        now = time.monotonic()
        self._report(
            Result(
                index=case.index,
                shape=case.shape,
                point=case.point,
                fault=case.fault.value,
                verdict=verdict,
                seconds=round(now - self._began, 2),
                held_seconds=held_seconds,
                detail=detail,
            )
        )
        self._began = now

    def _live(self, life: Life) -> None:
        pipeline = self._pipeline
        if pipeline.driver is not None:
            pipeline.stop()
        self.current = next(iter([*self._dead, *life.cases]), None)
        outlives_restart = self._dead and pipeline.timeout_seconds == LONG_TIMEOUT_SECONDS
        is_hidden = outlives_restart and pipeline.observer.is_held_back()
        claim_before = pipeline.newest_claim()
        pipeline.start(life.timeout_seconds, arm=life.start.point if life.start else None)
        if life.start is not None:
            pipeline.wait_for_hold(f"the driver reaches {life.start.point}")
        if is_hidden:
            self._measure_held(claim_before)
        if life.start is not None:
            fault(pipeline, self._broker, life.start)
            self._dead.append(life.start)
            if life.start.fault is Fault.DRIVER:
                return
        self._probe(life)
        for case in [*life.middle, *([life.kill] if life.kill else [])]:
            if self.failed and not self._goes_on:
                return
            self._inject(case)

    def _measure_held(self, before: ClaimRecord | None) -> None:
        pipeline = self._pipeline
        freed = 0.0

        def claimed_and_freed() -> bool:
            nonlocal freed
            if not freed and pipeline.observer.is_held_back() is False:
                freed = time.time()
            return bool(freed) and pipeline.newest_claim() not in (None, before)

        pipeline.wait(claimed_and_freed, "a restart's claim frees what the dead driver had open")
        claim = pipeline.newest_claim()
        assert claim is not None
        self._held_seconds = round(max(0.0, freed - claim.claimed / 1000), 3)

    def _probe(self, life: Life) -> None:
        """See that the pipeline goes on, and judge what happened before that."""
        self._pipeline.send(_PROBE)
        findings = self._pipeline.settle(self._pipeline.last_batch + 1)
        dead, self._dead = self._dead, []
        held, self._held_seconds = self._held_seconds, None
        for case in dead or (life.cases[:1] if findings else []):
            self.tell(case, verdict_of(findings), detail="; ".join(findings.notes), held_seconds=held)
            held = None

    def _inject(self, case: Case) -> None:
        pipeline = self._pipeline
        self.current = case
        batch = pipeline.last_batch + (2 if case.shape == NO_DATA else 1)
        pipeline.arm(f"{case.point}:batch={batch}")
        pipeline.send(random.Random(case.seed).randint(*_BURST))
        pipeline.wait_for_hold(f"batch {batch} reaches {case.point}")
        fault(pipeline, self._broker, case)
        if case.fault is Fault.DRIVER:
            self._dead.append(case)
            return
        pipeline.wait(lambda: pipeline.is_complete(batch), f"batch {batch} is committed")
        pipeline.send(_PROBE)
        self._judge(case)

    def _judge(self, case: Case) -> None:
        findings = self._pipeline.settle(self._pipeline.last_batch)
        self.tell(case, verdict_of(findings), detail="; ".join(findings.notes))


def fault(pipeline: Pipeline, broker: EmbeddedBroker, case: Case) -> None:
    """Inject a case's fault into a driver that is held, and let it go on if it lives."""
    chance = random.Random(case.seed)
    assert pipeline.driver is not None
    if case.fault is Fault.DRIVER:
        pipeline.kill()
    elif case.fault is Fault.WORKER:
        _kill_worker(pipeline, chance)
    elif case.fault is Fault.FREEZE:
        _freeze(pipeline, chance)
    else:
        broker.kill()
        if chance.random() < 0.5:  # the driver meets a dead broker
            pipeline.release()
            time.sleep(chance.uniform(0, 1))
            broker.start()
        else:  # it finds that its connections are gone
            broker.start()
            pipeline.release()
        pipeline.observer.reconnect()


def _kill_worker(pipeline: Pipeline, chance: random.Random) -> None:
    """Kill one Python worker, or their daemon and so all; where there is none yet, the first that comes."""
    workers = pipeline.workers()
    if workers:
        os.kill(chance.choice(workers), signal.SIGKILL)
        pipeline.release()
        return
    pipeline.release()
    pipeline.send(_PROBE)
    pipeline.wait(lambda: bool(pipeline.workers()), "a Python worker is there")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pipeline.workers()[0], signal.SIGKILL)


def _freeze(pipeline: Pipeline, chance: random.Random) -> None:
    """Stop the driver for longer than its transaction may be open, so that the broker aborts it."""
    assert pipeline.driver is not None
    pipeline.driver.freeze(pipeline.world.home)
    try:
        frozen = time.monotonic()
        time.sleep(pipeline.timeout_seconds + chance.uniform(0.2, 1.0))
        while pipeline.observer.is_held_back() is not False:
            assert time.monotonic() - frozen < pipeline.timeout_seconds + HANG_SECONDS, (
                "the broker aborts what timed out"
            )
            time.sleep(0.1)
        pipeline.release()
    finally:
        pipeline.driver.thaw()


def run_lanes(
    names: Sequence[str],
    folder: Path,
    worlds: Sequence[Sequence[Case]],
    report: Callable[[Result], None],
    **options: Any,
) -> None:
    """Take worlds through several lanes at once.

    :param options: for :class:`Lane`
    :raises BaseException: what a lane raised, once all have ended
    """
    left = list(worlds)
    lock = threading.Lock()
    errors: list[BaseException] = []

    def take() -> Sequence[Case] | None:
        with lock:
            return left.pop(0) if left and not errors else None

    def tell(result: Result) -> None:
        with lock:
            report(result)

    def work(name: str) -> None:
        try:
            with Lane(name, folder / name, tell, **options) as lane:
                while (cases := take()) is not None:
                    lane.run(cases)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,), name=name) for name in names[: len(worlds)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
