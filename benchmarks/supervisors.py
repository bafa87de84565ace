"""What many deferred supervisors of one triggerer cost, and how often each looks at its home.

Each has a driver and a home of its own: on a local file system, or on SeaweedFS behind a relay that keeps each answer
for a while. The drivers stand still, and count as alive. Nothing is logged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from urllib.parse import urlsplit

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.status import DriverState, Status
from airflow_provider_exactlyonce.exceptions import required
from airflow_provider_exactlyonce.triggers import shared_poller
from airflow_provider_exactlyonce.triggers.home_checker import HomeChecker
from airflow_provider_exactlyonce.triggers.log_throttle import LogThrottle
from airflow_provider_exactlyonce.triggers.pipeline import PipelineTrigger
from tests import object_stores
from tests.ports import free_port

#: The operator's default.
POLL_SECONDS: Final = 1.0
_CHUNK_BYTES: Final = 65536


def measure_supervisors(drivers: Mapping[str, Intent], seconds: float, threads: int | None = None) -> dict[str, float]:
    """Return how often each supervisor looks at its home, and the CPU of all of them.

    :param drivers: by the locations of their homes
    :param seconds: how long they are measured
    :param threads: that look at homes, None for as many as the package has
    """
    looks: Counter[str] = Counter()
    check = HomeChecker._check

    def noted(checker: HomeChecker, *args: Any, **kwargs: Any) -> Any:
        answers = check(checker, *args, **kwargs)
        looks[checker.conn_id] += 1
        return answers

    async def wait() -> tuple[int, float]:
        triggers = [
            PipelineTrigger(home=home, intent=asdict(intent), owner=intent.owner, poll_interval=POLL_SECONDS)
            for home, intent in drivers.items()
        ]
        waiting = [asyncio.create_task(_first_of(trigger)) for trigger in triggers]
        while len(looks) < len(drivers):  # the first look opens the home, too
            await asyncio.sleep(0.5)
        before, used = looks.total(), time.process_time()
        await asyncio.sleep(seconds)
        looked, used = looks.total() - before, time.process_time() - used
        assert not any(task.done() for task in waiting), "each of them waits"
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return looked, used

    pool = ThreadPoolExecutor(threads) if threads else HomeChecker.threads
    with (
        patch.object(leases, "stale_seconds", lambda _: float("inf")),
        patch.object(LogThrottle, "line", lambda *_: None),
        patch.object(HomeChecker, "_check", noted),
        patch.object(HomeChecker, "threads", pool),
    ):
        looked, used = asyncio.run(wait())
    return {
        "supervisors": len(drivers),
        "threads": threads or shared_poller.HOME_THREADS._max_workers,
        "cores": used / seconds,
        "cpu_milliseconds_per_look": 1000 * used / looked,
        "seconds_between_looks": seconds * len(drivers) / looked,
    }


def begun(root: str, number: int) -> dict[str, Intent]:
    """Make so many homes of pipelines that this process drives, in a directory."""
    locations = [f"{root}/{index}" for index in range(number)]
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(locations, pool.map(_begin, locations), strict=True))


def _begin(location: str) -> Intent:
    home, pid = Home(location), os.getpid()
    leases.acquire(home.lease, "bench", "token", run=1)
    statuses.write(home.status, Status(pipeline="bench", token="token", state=DriverState.RUNNING, run=1))
    intent = Intent(
        token="token",
        owner="dag/task/run/-1",
        until="forever",
        series="token",
        restarts=0,
        log="",
        machine=process_identity.this_machine(),
        pid=pid,
        process_started=required(process_identity.process_start(pid), "this process runs"),
    )
    intents.write(home.intent, intent)
    return intent


async def _first_of(trigger: PipelineTrigger) -> Mapping[str, Any]:
    [event] = [event.payload async for event in trigger.run()]
    return event  # type: ignore[no-any-return]


@contextmanager
def late(address: str, seconds: float) -> Iterator[str]:
    """Stand before a server, in a process of its own, and keep what it answers for so long; gives the address."""
    port = free_port()
    relay = multiprocessing.get_context("spawn").Process(target=_relay, args=(port, address, seconds))
    relay.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        relay.kill()
        relay.join()


def _relay(port: int, address: str, seconds: float) -> None:
    target = urlsplit(address)

    async def pass_on(
        reader: asyncio.StreamReader, write: Callable[[bytes], object], end: Callable[[], object]
    ) -> None:
        with suppress(ConnectionError):
            while chunk := await reader.read(_CHUNK_BYTES):
                write(chunk)
        end()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_connection(target.hostname, target.port)
        later = asyncio.get_running_loop().call_later
        await asyncio.gather(
            pass_on(reader, questions.write, questions.close),
            pass_on(
                answers,
                lambda chunk: later(seconds, writer.write, chunk),
                lambda: later(seconds, writer.close),
            ),
        )

    async def run() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
            await server.serve_forever()

    asyncio.run(run())


def measure(
    number: int, seconds: float, milliseconds: Sequence[float], threads: int | None = None
) -> Iterator[dict[str, Any]]:
    """Measure on local homes, and on a store that answers after so many milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        yield {"homes": "local", **measure_supervisors(begun(folder, number), seconds, threads)}
    with tempfile.TemporaryDirectory() as folder, object_stores.seaweedfs(Path(folder)) as address:
        os.environ.update(object_stores.environment(address))
        drivers = begun("s3://bucket/bench", number)
        for late_by in milliseconds:
            with late(address, late_by / 1000) as slow:
                os.environ.update(object_stores.environment(slow))
                yield {"homes": f"S3, {late_by:g} ms", **measure_supervisors(drivers, seconds, threads)}


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--supervisors", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each measurement takes")
    parser.add_argument("--milliseconds", type=float, nargs="*", default=[300.0], help="after which a store answers")
    parser.add_argument("--threads", type=int, help="that look at homes (default: those of the package)")
    given = parser.parse_args()
    for measured in measure(given.supervisors, given.seconds, given.milliseconds, given.threads):
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
