"""Which version of its job a pipeline runs, once it was upgraded, and the files of its versions.

::

    <home>/release.json                          the version in use; absent before the first upgrade
    <home>/applications/<version>/release.json   where the job's file of a version was, and its hash
    <home>/applications/<version>/<name>.py      that file, as it was when the version started or was checked

Before its first upgrade a pipeline runs whatever file it is started with. Afterwards only upgrades and rollbacks change
its version: an older file that somebody starts by habit is refused, and never undoes an upgrade.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_exactlyonce.codec import Rewritten
from airflow_provider_exactlyonce.control import json_store, upgrade_plan
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError, VersionRefusedError
from airflow_provider_exactlyonce.storage.opening import LOCAL, is_local, store_of
from airflow_provider_exactlyonce.storage.store import ChangedError, Stored


@dataclass(frozen=True, kw_only=True)
class Release(Rewritten):
    """The version in use.

    :param version: content hash of the job
    :param since: when it became the one in use, milliseconds since the epoch
    :param previous: the version before it, None when a rollback has made it the one in use
    :param savepoint: of the version before it: what a rollback goes back to, None when there is none
    :param pinned: whether the upgrade has pinned that savepoint
    """

    version: str
    since: int
    previous: str | None = None
    savepoint: str | None = None
    pinned: bool = False


@dataclass(frozen=True, kw_only=True)
class Application:
    """The job's file of one version.

    :param path: where it was started from
    :param kept: this home's copy
    :param here: where a copy is on this host: the home's, or one of it
    :param job_hash: SHA-256 of it
    """

    version: str
    path: str
    kept: Path
    here: Path
    job_hash: str

    @property
    def file(self) -> Path:
        """What to start: where it was while it is still the same there, or else the copy."""
        path = Path(self.path)
        if hash_of(path) == self.job_hash:
            return path
        if hash_of(self.here) != self.job_hash and (kept := store_of(self.kept).read(self.kept)) is not None:
            LOCAL.replace(self.here, kept.content)
        return self.here


def read(home: Home) -> Release | None:
    """Return the version in use, None before the first upgrade."""
    return json_store.load(home.path / "release.json", Release)


def stored(home: Home) -> Stored | None:
    """Return the version in use as it is stored, to be replaced by :func:`write`."""
    return store_of(home.path).read(home.path / "release.json")


def write(home: Home, release: Release, before: Stored | None) -> None:
    """Replace the version in use, unless it was changed.

    :param before: what is replaced, None for none
    :raises AlreadyRunningError: when another upgrade or rollback has changed it
    """
    try:
        json_store.swap(home.path / "release.json", before, release)
    except ChangedError as error:
        raise AlreadyRunningError(f"another upgrade or rollback has gone on meanwhile: {error}") from error


def keep(home: Home, version: str, file: Path, content: bytes) -> None:
    """Keep the job's file of a version, so that it can be started again. May be repeated.

    :param content: what of it was executed, whatever is there now
    :raises RefusedError: as :func:`check_kept` does
    """
    job_hash = hashlib.sha256(content).hexdigest()
    check_kept(home, version, job_hash)
    directory = home.path / "applications" / version
    recorded = json_store.read(directory / "release.json") or {}
    if _hash_kept(directory / file.name) != job_hash:  # it is not there, or was damaged
        store_of(directory).replace(directory / file.name, content)
    body = {**recorded, "path": str(file.resolve()), "job_hash": job_hash}
    json_store.write(directory / "release.json", body)


def check_kept(home: Home, version: str, job_hash: str) -> None:
    """Check that what is kept of a version, if anything is, is the same file.

    :param job_hash: SHA-256 of the version's file
    :raises RefusedError: when it is another one; it is never overwritten
    """
    directory = home.path / "applications" / version
    recorded = json_store.read(directory / "release.json")
    if recorded is not None and recorded["job_hash"] not in (None, job_hash):
        raise RefusedError(
            f"{directory} has another file as version {version} (SHA-256 {recorded['job_hash']}) than this one "
            f"({job_hash}): one that changed while it was started was kept under this name. Look which is right; to "
            "keep this one, move the directory away and start again"
        )


def application(home: Home, version: str) -> Application | None:
    """Return the job's file of a version that has run here, None when it was not kept.

    :raises OSError: when the file system does not tell
    """
    directory = home.path / "applications" / version
    body = json_store.read(directory / "release.json")
    if body is None:
        return None
    copy = directory / Path(body["path"]).name
    if body["job_hash"] is None or _hash_kept(copy) != body["job_hash"]:
        return None
    local_copy = copy if is_local(copy) else home.here / "applications" / version / copy.name
    return Application(version=version, path=body["path"], kept=copy, here=local_copy, job_hash=body["job_hash"])


def hash_of(file: Path) -> str | None:
    """Return the SHA-256 of a file of the user's, None when it can't be read."""
    try:
        return _hash_kept(file)
    except OSError:
        return None


def _hash_kept(file: Path) -> str | None:
    """Return the SHA-256 of a file of the home, None when there is certainly none."""
    stored = store_of(file).read(file)
    return None if stored is None else hashlib.sha256(stored.content).hexdigest()


def application_to_run(home: Home, asked: str) -> str:
    """Return the file to start a pipeline with: the one that is asked for, or that of the version in use.

    :param asked: a path; what is no local file is returned as it is
    """
    release, asked_hash = read(home), hash_of(Path(asked))
    current = application(home, release.version) if release is not None else None
    if current is None or asked_hash in (None, current.job_hash):
        return asked
    return str(current.file)


def check_start(home: Home, version: str, token: str) -> None:
    """Check, without side effects, that a driver may start.

    :raises AlreadyRunningError: when an upgrade is under way that has not started it
    :raises VersionRefusedError: when it would undo an upgrade
    """
    plan = upgrade_plan.read(home)
    if plan is not None and plan.holds_starts and token != plan.token:
        raise AlreadyRunningError(
            f"{plan.sentence}, and only what it starts may run meanwhile. Wait for its end; if nobody works on it any "
            f"more, repeat it, or go back: exactlyonce rollback {plan.pipeline}"
        )
    release = read(home)
    if release is None or release.version == version:
        return
    raise VersionRefusedError(
        f"this is version {version}, and the pipeline in {home} was brought to version {release.version}: an "
        "older file must not undo that. Start the newer file; to change the version, use exactlyonce upgrade or "
        "exactlyonce rollback"
    )
