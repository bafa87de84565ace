"""Takes seeds through faults: one seed is one pipeline, from its first batch to its last."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.exceptions import BatchTimedOutError
from airflow_provider_exactlyonce.failpoints import NAMES
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from tests.crash_matrix.observer import QUIET, Observer
from tests.crash_matrix.verdict import Findings, Judge
from tests.integration.protocol import source
from tests.processes import is_stopped
from tests.waiting import HANG_SECONDS, eventually

ROOT = Path(__file__).parents[3]
BATCHES = 3
LONG_TIMEOUT_SECONDS, SHORT_TIMEOUT_SECONDS = 120, 2
KILL, KILL_TASK, FREEZE, FREEZE_TASK, BROKER = "driver SIGKILL", "task SIGKILL", "SIGSTOP", "task SIGSTOP", "broker"
#: How many of a hundred seeds; those that have to wait are few.
SHARES = {KILL: 75, KILL_TASK: 20, FREEZE: 2, FREEZE_TASK: 2, BROKER: 1}
_KINDS = [kind for kind, share in SHARES.items() for _ in range(share)]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What happens to one seed's pipeline.

    :param steps: fail points, one a life; the life after the last goes to the end
    :param harm: what is done to a task; see :class:`tests.integration.protocol.tasks.Tasks`
    """

    seed: int
    kind: str
    steps: tuple[str, ...] = ()
    harm: tuple[int, int, float, float] | None = None

    @classmethod
    def of(cls, seed: int) -> Self:
        """Draw it."""
        chance = random.Random(seed)
        kind = _KINDS[seed % 100]
        if kind == KILL_TASK:
            return cls(seed=seed, kind=kind, harm=(signal.SIGKILL, chance.randrange(2), chance.uniform(0, 0.06), 0))
        if kind == FREEZE_TASK:
            harm = signal.SIGSTOP, chance.randrange(2), chance.uniform(0, 0.02), SHORT_TIMEOUT_SECONDS + 1.5
            return cls(seed=seed, kind=kind, harm=harm)
        steps = tuple(_step(seed, chance) for _ in range(chance.choice((1, 1, 2)) if kind == KILL else 1))
        return cls(seed=seed, kind=kind, steps=steps)


def _step(seed: int, chance: random.Random) -> str:
    point = chance.choice(NAMES)
    if point == "after-claim":
        return point
    full = [batch for batch in range(BATCHES) if source.ends(seed, batch) != source.ends(seed, batch - 1)]
    if point == "during-send" and not full:
        point = "after-begin"
    return f"{point}:batch={chance.choice(full if point == 'during-send' else range(BATCHES))}"


@dataclass
class Outcome:
    """What became of a seed."""

    plan: Plan
    findings: Findings
    deaths: int
    seconds: float

    def __str__(self) -> str:
        return f"seed {self.plan.seed} ({self.plan}): {self.findings.notes or 'recovered'}"


class Forge:
    """The process that has imported everything and is forked for every driver.

    :param socket_path: where it listens
    """

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.protocol.driver", str(self._path)],
            stdin=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def connect(self) -> socket.socket:
        """Return a connection to a server of its own."""
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(self._path))
            except OSError:
                connection.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return connection


class Lane:
    """One driver after the other, on one broker.

    :param broker: None when the faults leave it alone
    """

    def __init__(
        self,
        forge: Forge,
        folder: Path,
        config: Mapping[str, str],
        broker: EmbeddedBroker | None = None,
        protocol: str = "",
    ) -> None:
        self._forge = forge
        self._listener_ended = threading.Event()
        folder.mkdir(parents=True)
        self._folder, self._config, self._broker = folder, config, broker
        self._protocol = protocol or "BatchTransaction"
        self._admin = AdminClient({**config, **QUIET})
        self._plan = folder / "plan"
        self._name = f"{folder.name}-{uuid.uuid4().hex[:6]}"  # other lanes, of before too, share the broker
        self._source = self._make_topic(f"source-{self._name}", source.PARTITIONS)

    def __enter__(self) -> Self:
        self._connection = self._forge.connect()
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._tell(str(self._plan))
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.shutdown(socket.SHUT_WR)
        self._listener_ended.wait(HANG_SECONDS)
        self._connection.close()

    def run(self, plan: Plan) -> Outcome:
        """Take one pipeline through its faults to its end, and judge it."""
        began = time.monotonic()
        folder = self._folder / str(plan.seed)
        folder.mkdir()
        name = f"{self._name}-{plan.seed}"
        spec: dict[str, Any] = {
            "config": dict(self._config),
            "pipeline": name,
            "home": str(folder / "home"),
            "source": self._source,
            "sink": self._make_topic(f"{name}-out", 3),
            "seed": plan.seed,
            "batches": BATCHES,
            "tasks": 2,
            "harm": plan.harm,
            "timeout_seconds": SHORT_TIMEOUT_SECONDS if "SIGSTOP" in plan.kind else LONG_TIMEOUT_SECONDS,
            "protocol": self._protocol,
            "log": str(folder / "driver.log"),
        }
        findings, deaths = Findings(), 0
        try:
            for step in (*plan.steps, None):
                code = self._live(spec, plan, step)
                if code == BatchTimedOutError.exit_code and spec["timeout_seconds"] == SHORT_TIMEOUT_SECONDS:
                    spec |= {
                        "timeout_seconds": LONG_TIMEOUT_SECONDS,
                        "harm": None,
                    }  # as a user of a slow machine
                    code = self._live(spec, plan, None)
                deaths += code == -signal.SIGKILL
                if code not in (0, -signal.SIGKILL):
                    findings.notes.append(f"the driver ended with {code}: {_end_of(spec['log'])}")
                spec["harm"] = None
            if not findings:
                self._judge(spec, findings)
        except (TimeoutError, AssertionError) as error:
            findings.notes.append(f"hanging: {error}; {_end_of(spec['log'])}")
        if not findings:
            shutil.rmtree(folder)
        return Outcome(plan, findings, deaths, time.monotonic() - began)

    def _live(self, spec: dict[str, Any], plan: Plan, step: str | None) -> int:
        """Let a driver live until it ends or is killed; returns its exit code."""
        hold = self._folder / "hold"
        self._plan.unlink(missing_ok=True)  # a step that the life before did not reach
        if step is not None:
            action = {FREEZE: ":signal=STOP", BROKER: f":hold={hold}"}.get(plan.kind, "")
            beside = self._plan.with_suffix(".new")
            beside.write_text(step + action)
            beside.replace(self._plan)
        self._tell(spec)
        pid = self._read(HANG_SECONDS)["pid"]
        try:
            if step is not None and plan.kind == FREEZE:
                self._thaw(pid)
            if step is not None and plan.kind == BROKER:
                self._restart_broker(hold, random.Random(plan.seed))
            return int(self._read(HANG_SECONDS)["code"])
        except (TimeoutError, FileNotFoundError, psutil.NoSuchProcess) as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            raise TimeoutError(f"{error}; the driver ended with {self._read(HANG_SECONDS)['code']}") from error

    def _read(self, timeout_seconds: float) -> dict[str, Any]:
        try:
            return dict(json.loads(self._lines.get(timeout=timeout_seconds)))
        except queue.Empty:
            raise TimeoutError(f"nothing from the driver for {timeout_seconds:.0f} s") from None

    def _tell(self, thing: object) -> None:
        self._connection.sendall(json.dumps(thing).encode() + b"\n")

    def _listen(self) -> None:
        with self._connection.makefile("r") as lines:
            for line in lines:
                self._lines.put(line)
        self._listener_ended.set()

    def _thaw(self, pid: int) -> None:
        deadline = time.monotonic() + HANG_SECONDS
        while not is_stopped(pid):
            if time.monotonic() > deadline:
                raise TimeoutError("the driver does not reach the step at which it freezes")
            time.sleep(0.02)
        time.sleep(SHORT_TIMEOUT_SECONDS + 1.5)
        os.killpg(pid, signal.SIGCONT)

    def _restart_broker(self, hold: Path, chance: random.Random) -> None:
        assert self._broker is not None
        deadline = time.monotonic() + HANG_SECONDS
        while not hold.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("the driver does not reach the step at which the broker dies")
            time.sleep(0.02)
        self._broker.kill()
        if chance.random() < 0.5:  # the driver meets a dead broker
            hold.unlink()
        self._broker.start()
        hold.unlink(missing_ok=True)

    def _judge(self, spec: Mapping[str, Any], findings: Findings) -> None:
        observer = Observer(self._config, spec["sink"], ledger_topic(spec["pipeline"]))
        try:
            ends = eventually(
                observer.decided_ends, lambda: f"all decided: {observer.held_back()} is open", poll_seconds=0.02
            )
            observer.catch_up(ends)
            judge = Judge(self._source, spec["sink"], source.owed)
            judged = judge.judge(observer.commits, observer.rows)
        finally:
            observer.close()
        findings.lost, findings.doubled, findings.torn = judged.lost, judged.doubled, judged.torn
        findings.notes += judged.notes
        expected = source.ends(spec["seed"], BATCHES - 1)
        if judge.ends != expected or judge.commit != BATCHES:
            findings.notes.append(f"{judge.commit} commits up to {judge.ends}, not {BATCHES} up to {expected}")

    def _make_topic(self, name: str, partitions: int) -> str:
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        resource, deadline = ConfigResource(ResourceType.TOPIC, name), time.monotonic() + HANG_SECONDS
        while True:  # a broker answers that a topic exists before it can describe its settings
            try:
                self._admin.describe_configs([resource])[resource].result(30)
            except KafkaException:
                assert time.monotonic() < deadline, f"topic {name} can't be described"
                time.sleep(0.05)
            else:
                return name


def _end_of(log: str) -> str:
    return Path(log).read_text()[-2000:] if Path(log).exists() else "no log"


def run_lanes(work: Sequence[tuple[Lane, list[Plan]]]) -> list[Outcome]:
    """Take plans through lanes at the same time; lanes with the same list share it.

    :raises BaseException: what a lane raised, once all have ended
    """
    outcomes, errors = list[Outcome](), list[BaseException]()

    def live(lane: Lane, left: list[Plan]) -> None:
        try:
            with lane:
                while not errors:
                    try:
                        plan = left.pop(0)
                    except IndexError:
                        return
                    outcomes.append(lane.run(plan))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=live, args=assignment) for assignment in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return outcomes
