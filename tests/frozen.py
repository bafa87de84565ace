"""A process that is frozen before one of its requests to a store, for as long as others need to go on without it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from airflow_provider_exactlyonce.storage.store import Store

WRITES: Final = ("create", "replace", "replace_if", "delete", "delete_if", "remove", "copy")
ALL: Final = (*WRITES, "read", "names", "files", "facts", "reading")


class Freeze:
    """Freezes this thread before its n-th request.

    :param at: n, from 0 on
    :param counted: names of the requests that count
    :param meanwhile: what others do
    :ivar happened: whether there was such a request
    """

    def __init__(self, at: int, counted: Sequence[str], meanwhile: Callable[[], None]) -> None:
        self.happened = False
        self._names: Final = counted
        self._left = at
        self._meanwhile: Final = meanwhile
        self._thread: Final = threading.get_ident()
        self._inside = False

    @contextmanager
    def requests_of(self, kind: type[Store]) -> Iterator[None]:
        """Count the requests to stores of a kind; what a request does within the store is no other one."""
        with ExitStack() as patched:
            for name in self._names:
                patched.enter_context(mock.patch.object(kind, name, self._counted(getattr(kind, name))))
            yield

    def _counted(self, request: Callable[..., Any]) -> Callable[..., Any]:
        def counted(store: Store, *arguments: Any, **named: Any) -> Any:
            if self._inside or threading.get_ident() != self._thread:
                return request(store, *arguments, **named)
            self._inside = True
            try:
                if self._left == 0:
                    self.happened = True
                    self._meanwhile()
                self._left -= 1
                return request(store, *arguments, **named)
            finally:
                self._inside = False

        return counted


def at_each(
    counted: Sequence[str], kind: type[Store], scene: Callable[[], tuple[Callable[[], object], Callable[[], None]]]
) -> int:
    """Play a scene again and again, frozen before another request each time; returns how many there are.

    :param counted: names of the requests
    :param kind: of the stores
    :param scene: makes what the frozen process does, and what others do meanwhile, which is judged at its own end
    """
    for at in range(100_000):
        act, meanwhile = scene()
        freeze = Freeze(at, counted, meanwhile)
        with freeze.requests_of(kind):
            act()
        if not freeze.happened:
            return at
    raise AssertionError("it never ends")
