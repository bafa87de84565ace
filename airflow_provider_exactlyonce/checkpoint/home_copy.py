"""Moves the home of a stopped pipeline to another place, on any file system.

1. The lease of the old home is taken, and the turn of its backfills: nobody writes there meanwhile.
2. The new place gets its ``home.json``, which names the source, and marks the copy as unfinished: it is no home.
3. Each file is copied, read again and compared; the files that make others valid come last. All of it is flushed.
4. ``current`` of the old home is replaced by a seal, unless another process has written it since step 1. This decides.
5. ``home.json`` of the new home is replaced by a finished one, which a start accepts.

Before step 4 the old home is the home, after step 5 the new one is, and in between neither. A call that was killed is
repeated from the first step; equal files are not copied twice.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.checkpoint import lineages
from airflow_provider_exactlyonce.checkpoint.home_match import check_start
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import moving, upgrade_plan
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.lease import Hold
from airflow_provider_exactlyonce.control.moving import HomeDocument, Move
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.storage.opening import is_local, store_of
from airflow_provider_exactlyonce.storage.store import HeldError
from airflow_provider_exactlyonce.storage.trees import (
    Content,
    bytes_of,
    check_content,
    content_of,
    content_of_bytes,
    copy_file,
    directories_of,
)

#: What means something only where it is: who holds what, what is asked of a driver, what it has printed, and what a
#: driver in a cluster was given of connections; and the two documents that say of a home whether it is one. The same of
#: each backfill's home, but for those documents.
_LEFT_OUT: Final = re.compile(
    r"home\.json|current|(backfills/[^/]+/)?control/((lease|standby|intent)\.json|commands/.+|logs/.+)"
    r"|(backfills/[^/]+/)?control/(kafka|sources|postgres|stores|schema_registry|s3|gcs)\.json"
    r"|backfills/turn\.lease\.json|(.+/)?[^/]+\.lock"
    r"|(backfills/[^/]+/)?lineages/[^/]+/checkpoint/state/[^/]+/_metadata/v2/\.[^/]+"  # Hadoop's checksums of _METADATA
)
#: What is written last wherever it is: before it a directory counts as nothing.
_LAST: Final = re.compile(r"(.+/)?(lineage|manifest)\.json|backfills/[^/]+/(home\.json|current)")
#: Spark's metadata of a lineage's state has absolute paths.
_METADATA: Final = re.compile(r"((?:backfills/[^/]+/)?lineages/[^/]+/checkpoint)/state/[^/]+/_metadata/v2/[^/]+")
#: What a call has left that was killed while it began.
_TEMPORARY_DOCUMENT: Final = re.compile(r"\.home\.json\.[^/]+")
_THREADS: Final = 8  # each keeps pieces of up to 50 MB of a file in a bucket


def in_order(paths: Iterable[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the files of a home that are copied, and those that are copied when the others are.

    :param paths: of all its files, relative to it
    """
    kept = [path for path in paths if not _LEFT_OUT.fullmatch(path)]
    return [path for path in kept if not _LAST.fullmatch(path)], [path for path in kept if _LAST.fullmatch(path)]


@dataclass(kw_only=True)
class HomeCopied:
    """The result of a call.

    :param run: the newest run of the pipeline, which is the last of the old home; 0 for none
    :ivar changed: whether there was anything left to do
    :ivar files: how many the new home has of the old one
    :ivar size: their bytes
    :ivar copied: how many of them this call has copied; the others were there
    """

    pipeline: str
    run: int
    changed: bool = True
    files: int = field(init=False, default=0)
    size: int = field(init=False, default=0)
    copied: int = field(init=False, default=0)


def copy_home(source: Home, target: Home, config: Mapping[str, Any]) -> HomeCopied:
    """Move a home. May be repeated after it was killed, and does nothing when all is done.

    :param config: client configuration in librdkafka's names
    :raises RefusedError: when the source is not the home of its pipeline, or the target is not empty; nothing is moved
    :raises AlreadyRunningError: when a driver or a backfill of the pipeline lives, or another call has gone on
    :raises HomeMovedError: when the source was moved elsewhere
    """
    document, target_document = _read(source, target)
    if (finished := _finished(source, document, target_document)) is not None:
        return finished
    with (
        leases.holding_stopped(source.lease, document.pipeline, "copy") as hold,
        _without_backfills(source, document.pipeline),
        LedgerReader(config, document.pipeline) as reader,
    ):
        document, target_document = _read(source, target)  # another call may have ended meanwhile
        finished = _finished(source, document, target_document)
        return finished or _move(source, target, document, target_document, hold, reader.tail())


def _finished(source: Home, document: HomeDocument, target_document: HomeDocument | None) -> HomeCopied | None:
    """Return the answer of a call that has nothing to do, None when there is something."""
    move = moving.sealed(source.path)
    if move is None or target_document is None or not target_document.is_whole:
        return None
    return HomeCopied(pipeline=document.pipeline, run=move.run, changed=False)


def _move(
    source: Home,
    target: Home,
    document: HomeDocument,
    target_document: HomeDocument | None,
    hold: Hold,
    tail: LedgerTail | None,
) -> HomeCopied:
    sealed_move = moving.sealed(source.path)
    move = sealed_move or _decide(source, target, document.pipeline, tail)
    _check_not_gone_on(move, tail)
    if target_document is None:
        _begin(target, document, move)
    elif target_document.is_whole:
        raise RefusedError(f"{target} is a home already: {source} can't be copied there")
    failpoints.reach("copy-begun")
    copied = HomeCopied(pipeline=document.pipeline, run=move.run)
    _copy(source, target, hold, move.lineage, copied)
    failpoints.reach("copy-compared")
    if sealed_move is None:
        with hold.sure():
            moving.seal(source.path, move, hold.pointer)
    failpoints.reach("copy-sealed")
    moving.finish(target.path, document, move)
    failpoints.reach("copy-finished")
    return copied


def _read(source: Home, target: Home) -> tuple[HomeDocument, HomeDocument | None]:
    """Return both homes' documents, None for a target that has none.

    :raises RefusedError: when one of them can't be copied to the other
    """
    places = str(source), str(target)
    if any(f"{inner}/".startswith(f"{outer}/") for inner, outer in (places, places[::-1])):
        raise RefusedError(f"{source} and {target} are one place, or one is in the other: name another")
    document = moving.document(source.path)
    if document is None or not document.is_whole:
        source.identity()  # which says why
        raise RefusedError(f"{source} is no home of a pipeline: there is nothing to copy")
    move = moving.sealed(source.path)
    if move is not None and move.places != places:
        raise moving.moved(move)
    target_document = moving.document(target.path)
    is_this_move = (
        target_document is not None
        and target_document.move is not None
        and (target_document.id, target_document.move.places) == (document.id, places)
    )
    if target_document is not None and not is_this_move:
        raise RefusedError(f"{target} is a home of pipeline {target_document.pipeline}: name a target that is empty")
    if target_document is None and not all(
        _TEMPORARY_DOCUMENT.fullmatch(path) for path in store_of(target.path).files(target.path)
    ):
        raise RefusedError(f"{target} is not empty, and no copy of {source}: name a target that is")
    return document, target_document


def _decide(source: Home, target: Home, pipeline: str, tail: LedgerTail | None) -> Move:
    """Return the move of a home that is not sealed yet.

    :raises RefusedError: when a driver could not start with it, or not with its copy
    """
    check_start(source, pipeline, tail)
    lineage = source.current()
    if lineage is None:
        raise RefusedError(f"{source} has no lineage: there is nothing to copy. Start the pipeline elsewhere")
    plan = upgrade_plan.read(source)
    if plan is not None and not plan.is_over:
        raise RefusedError(f"{plan.sentence}: end it, or go back by exactlyonce rollback {pipeline}, and copy then")
    if not is_local(target.path) and store_of(source.path).files(source.path / "sinks"):
        raise RefusedError(
            f"a sink of {pipeline} stages rows in {source}/sinks, which it can only on a mounted file system: "
            f"{target} is on none"
        )
    run = tail.claim.run if tail is not None and tail.claim is not None else 0
    return Move(source=str(source), target=str(target), lineage=lineage.id, run=run)


def _check_not_gone_on(move: Move, tail: LedgerTail | None) -> None:
    """Check that no run has begun since a home was sealed, at the target or wherever a copy was put."""
    claim = tail.claim if tail is not None else None
    if claim is not None and claim.run != move.run:
        raise RefusedError(
            f"{move.source} was sealed after run {move.run}, and run {claim.run} has begun since from "
            f"{claim.home_path}: what {move.source} has is no longer where the pipeline is"
        )


@contextmanager
def _without_backfills(home: Home, pipeline: str) -> Iterator[None]:
    """Keep backfills from running: a backfill that waits for its turn finds the home sealed afterwards.

    :raises AlreadyRunningError: when one runs
    """
    try:
        with leases.alone(home.backfills / "turn", pipeline, note=f"a copy of {home}"):
            yield
    except HeldError as error:
        raise AlreadyRunningError(
            f"another process has the turn of the backfills of {pipeline}: {error.note or error}. End that first"
        ) from error


def _begin(target: Home, document: HomeDocument, move: Move) -> None:
    target.check_can_be_made()
    store_of(target.path).check(target.path)
    try:
        moving.begin(target.path, document, move)
    except FileExistsError as error:
        raise RefusedError(f"somebody else has made a home in {target} meanwhile: name another one") from error


class _OnlyCopy:
    """Checks that no other call has gone on: a call that was frozen must not write into a home that is in use.

    :param hold: of the source
    """

    def __init__(self, source: Home, target: Home, hold: Hold) -> None:
        self._current: Final = source.path / "current"
        self._target: Final = target.path
        self._hold: Final = hold
        self._checked = time.monotonic()

    def check(self) -> None:
        """Check it.

        :raises AlreadyRunningError: when a driver or another call has gone on
        """
        self._checked = time.monotonic()
        with self._hold.sure():
            target_document = moving.document(self._target)
        if (
            target_document is None
            or target_document.is_whole
            or store_of(self._current).read(self._current) != self._hold.pointer
        ):
            raise AlreadyRunningError(f"somebody has gone on with {self._current.parent} or {self._target} meanwhile")

    def check_often(self) -> None:
        """Check it as often as the hold is renewed."""
        if time.monotonic() - self._checked > leases.HEARTBEAT_SECONDS:
            self.check()


def _copy(source: Home, target: Home, hold: Hold, lineage: str, copied: HomeCopied) -> None:
    """Copy all files, remove files of an earlier call that the source no longer has, and name the lineage in use."""
    first, last = in_order(store_of(source.path).files(source.path))
    only_copy, store = _OnlyCopy(source, target, hold), store_of(target.path)
    planned = {*first, *last, "home.json", "current"}

    def copy(path: str) -> tuple[Content, bool]:
        only_copy.check_often()
        match = _METADATA.fullmatch(path)
        paths = source.path / path, target.path / path
        try:
            outcome = copy_file(*paths) if match is None else _rename(*paths, target.path / match[1])
        except OSError as error:
            raise ExactlyOnceError(
                f"{paths[0]} could not be copied to {paths[1]}: {error}. The old home is in use as before; the same "
                "call goes on with the copy"
            ) from error
        failpoints.reach("copy-during")
        return outcome

    with ThreadPoolExecutor(_THREADS) as threads:
        for files in (first, last):
            for content, is_new in threads.map(copy, files):
                copied.files += 1
                copied.size += content.size
                copied.copied += is_new
            store.flush([target.path / path for path in files])
    # Both before the check: a process that goes on with the target while we are frozen changes its content.
    obsolete = [path for path in store.files(target.path) if path not in planned]
    pointer = store.read(target.path / "current")
    only_copy.check()
    failpoints.reach("copy-flushed")
    for path in obsolete:
        only_copy.check_often()
        store.delete(target.path / path)
    store.flush(directories_of(target.path, [target.path / path for path in planned]))
    with hold.sure():
        target.switch(lineage, pointer)


def _rename(source: Path, target: Path, checkpoint: Path) -> tuple[Content, bool]:
    """Copy a file of a state's metadata, and let it name the checkpoint that it is in."""
    text = lineages.naming(checkpoint, bytes_of(source).decode()).encode()
    wanted = content_of_bytes(text)
    if content_of(target) == wanted:
        return wanted, False
    store_of(target).replace(target, text)
    check_content(target, wanted)
    return wanted, True
