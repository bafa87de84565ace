"""Looking for what many wait for at once: one checker per connection and kind, and one poller for it in the triggerer.

Hundreds of tasks that wait for the same cluster ask it together, with one set of connections, in one thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

from airflow_provider_exactlyonce.exceptions import Decision, ExactlyOnceError

#: File systems that do not answer keep a thread each for a while; gates on Kafka do not wait for these. There are as
#: many as 1,000 homes need that are looked at each 5 s, where a look takes 300 ms and a third more reads go with them;
#: each is only made when all others wait for an answer.
HOME_THREADS: Final = ThreadPoolExecutor(100, thread_name_prefix="homes")
#: How often the cause of the waiting is looked up again.
DIAGNOSE_SECONDS: Final = 30.0

#: A pause is doubled so often, while nobody answers.
_DOUBLED_AT_MOST: Final = 4

#: What one waits for, as JSON values
Subject = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What one check has found.

    :param found: the task's result, None while it has to wait
    :param missing: what it waits for
    :param fixed: what is waited for has been fixed now: to be asked for with these arguments from now on
    :param refused: waiting does not help, for the reason in ``missing``
    """

    found: dict[str, Any] | None = None
    missing: str = ""
    fixed: dict[str, Any] | None = None
    refused: bool = False


class Checker(ABC):
    """Looks for many subjects at one connection; blocks, one thread at a time.

    :param conn_id: connection of type ``kafka``, which is fetched again after an error
    """

    #: A poller checks at least as often, in seconds.
    seconds: ClassVar[float] = 60.0
    #: What ``conn_id`` names, for people.
    place: ClassVar[str] = "connection"
    #: In which it blocks; None for those of the event loop.
    threads: ClassVar[Executor | None] = None

    def __init__(self, conn_id: str) -> None:
        self.conn_id = conn_id
        self.least_seconds = 0.0  # a poller checks so often at most
        self._unanswered = 0  # checks in a row
        self._lock = threading.Lock()

    @classmethod
    def group_of(cls, subject: Subject) -> str:
        """Return the same for the subjects of one connection that are looked at together; what is slow delays those."""
        return ""

    @abstractmethod
    def _check(self, subjects: Mapping[str, Subject], *, diagnose: bool) -> Mapping[str, CheckResult | Exception]: ...

    @abstractmethod
    def _close(self) -> None:
        """Close the connections; the next check opens new ones."""

    def check(self, subjects: Mapping[str, Subject], *, diagnose: bool) -> dict[str, CheckResult | Exception]:
        """Look once at each; what the cluster doesn't say is missing until it does.

        :param subjects: by :func:`name_of` them
        :param diagnose: find out what holds readers back, too, which may be costly
        :returns: by the same names; an error for those that can't be looked at for a reason that a checker does not
            expect
        """
        with self._lock:
            answers = self._answers(subjects, diagnose=diagnose)
            is_silent = bool(answers) and all(isinstance(answer, Exception) for answer in answers.values())
            self._unanswered = self._unanswered + 1 if is_silent else 0
            if is_silent:
                self._close()
            return {name: self._result(answer) for name, answer in answers.items()}

    def _answers(self, subjects: Mapping[str, Subject], *, diagnose: bool) -> Mapping[str, CheckResult | Exception]:
        from confluent_kafka import KafkaException

        try:
            return self._check(subjects, diagnose=diagnose)
        except (KafkaException, ExactlyOnceError, OSError) as error:
            return dict.fromkeys(subjects, error)
        except Exception as error:  # whatever it is: it may be about one of them only
            if len(subjects) == 1:
                return dict.fromkeys(subjects, error)
        single_answers = [self._answers({name: subject}, diagnose=diagnose) for name, subject in subjects.items()]
        return {name: answer for answers in single_answers for name, answer in answers.items()}

    def pause(self, wanted: float) -> float:
        """Return how long a poller waits before the next check: longer and longer where nobody answers."""
        return max(wanted, self.least_seconds * (1 << min(self._unanswered, _DOUBLED_AT_MOST)))

    async def checked(self, subjects: Mapping[str, Subject], *, diagnose: bool) -> dict[str, CheckResult | Exception]:
        """Do :meth:`check` in a thread."""
        check = functools.partial(self.check, subjects, diagnose=diagnose)
        return await asyncio.get_running_loop().run_in_executor(self.threads, check)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self._close()

    def _result(self, answer: CheckResult | Exception) -> CheckResult | Exception:
        from confluent_kafka import KafkaException

        if isinstance(answer, ExactlyOnceError) and answer.decision is Decision.REFUSE:
            return CheckResult(missing=str(answer), refused=True)
        if isinstance(answer, KafkaException | ExactlyOnceError | OSError):
            return CheckResult(missing=f"{self.place} {self.conn_id}: {answer}")
        return answer


def name_of(subject: Subject) -> str:
    """Return by what name a checker is asked for a subject: the same for the same one, and of no other one."""
    return json.dumps(subject, sort_keys=True)


#: In it Airflow's own time-out, which knows nothing of what is missing, must not come.
_NOW_SECONDS: Final = 40.0


class Subscription:
    """One who waits.

    :param seconds: how often a check is wanted
    """

    def __init__(self, poller: Poller, subject: Subject, seconds: float) -> None:
        self.poller, self.subject, self.seconds = poller, subject, seconds
        self.name = name_of(subject)
        self._latest: CheckResult | Exception | None = None
        self._has_news = asyncio.Event()

    def tell(self, news: CheckResult | Exception) -> None:
        """Say what has been found, if it is news, or why nothing can be."""
        if news != self._latest:
            self._latest = news
            self._has_news.set()

    async def changed(self, seconds: float) -> CheckResult | None:
        """Wait for news; None when there are none for so long.

        :raises Exception: when checking has failed for a reason that a checker does not expect
        """
        try:
            async with asyncio.timeout(
                seconds
            ):  # wait_for of Python 3.11 loses a cancellation that comes with the news
                await self._has_news.wait()
        except TimeoutError:
            return None
        self._has_news.clear()
        if isinstance(self._latest, Exception):
            raise self._latest
        return self._latest

    async def now(self) -> CheckResult:
        """Check now, with the cause of the waiting; what was seen last when that takes too long.

        :raises Exception: as :meth:`changed` does
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOW_SECONDS):
                await self.poller.looked_anew()
        if isinstance(self._latest, Exception):
            raise self._latest
        return self._latest or CheckResult(missing="the cluster has not answered")


class Poller:
    """Looks for all who wait at one connection, until nobody does."""

    def __init__(self, checker: Checker) -> None:
        self.checker: Final = checker
        self.subscriptions: Final[set[Subscription]] = set()
        self.wake: Final = asyncio.Event()  # to look at once, or to end
        self._looked = asyncio.Event()  # the next look is over
        self._is_diagnosis_due = False  # the next look is to find the cause of the waiting
        # In a context of its own: what is logged on the way belongs to no single task that waits.
        self._task = asyncio.create_task(self._run(), context=contextvars.Context())

    async def looked_anew(self) -> None:
        """Wait for a look that begins from now on, and finds the cause of the waiting; all who ask meanwhile share it.

        Hundreds that began together end together. A look of each of them would take a thread, and keep it where nobody
        answers.
        """
        self._is_diagnosis_due = True
        self.wake.set()
        await self._looked.wait()

    async def _run(self) -> None:
        diagnosed = 0.0
        try:
            while self.subscriptions:
                self.wake.clear()
                began = time.monotonic()
                diagnose = self._is_diagnosis_due or began - diagnosed >= DIAGNOSE_SECONDS
                diagnosed = began if diagnose else diagnosed
                self._is_diagnosis_due, looked, self._looked = False, self._looked, asyncio.Event()
                await self._check(diagnose=diagnose)
                looked.set()
                pause = min([self.checker.seconds, *(subscription.seconds for subscription in self.subscriptions)])
                await self._pause(began + self.checker.pause(pause) - time.monotonic())
        finally:
            await asyncio.to_thread(self.checker.close)

    async def _check(self, *, diagnose: bool) -> None:
        subjects = {subscription.name: subscription.subject for subscription in self.subscriptions}
        try:
            results = await self.checker.checked(subjects, diagnose=diagnose)
        except Exception as error:  # whatever it is: those who wait must hear of it
            for subscription in self.subscriptions:
                subscription.tell(error)
            return
        for subscription in self.subscriptions:
            if subscription.name in results:
                subscription.tell(results[subscription.name])

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, _SHORTEST_SECONDS)):
                await self.wake.wait()


#: A triggerer has one event loop.
_pollers: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[type[Checker], str, str], Poller]]] = (
    WeakKeyDictionary()
)
_SHORTEST_SECONDS: Final = 0.05


@asynccontextmanager
async def subscribed(
    kind: type[Checker], conn_id: str, subject: Subject, seconds: float
) -> AsyncIterator[Subscription]:
    """Wait together with all others of this event loop that wait for the same kind of thing at the same connection."""
    pollers = _pollers.setdefault(asyncio.get_running_loop(), {})
    key = (kind, conn_id, kind.group_of(subject))
    poller = pollers.get(key)
    if poller is None:
        poller = pollers[key] = Poller(kind(conn_id))
    subscription = Subscription(poller, subject, seconds)
    poller.subscriptions.add(subscription)
    poller.wake.set()
    try:
        yield subscription
    finally:
        poller.subscriptions.discard(subscription)
        if not poller.subscriptions:
            pollers.pop(key, None)
            poller.wake.set()
