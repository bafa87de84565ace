"""The broker's jars, and those that Spark needs for Kafka and for buckets.

They are resolved once per user, verified, and found again in milliseconds.

A stamp beside the jars holds each one's size and times as they were when its SHA-256 was last compared with the one
that is written down here. The kernel sets a file's change time at every write, so equal times mean equal bytes and the
next call needs no hashing; unequal times cost one hashing, and unequal hashes a new download.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.exceptions import MissingRequirementError
from airflow_provider_exactlyonce.files import replacing, try_lock
from airflow_provider_exactlyonce.jars.ivy import DEPENDENCIES, Progress, retrieve
from airflow_provider_exactlyonce.jars.spark import spark_jars

KAFKA_VERSION: Final = "4.3.1"
SPARK_VERSION: Final = "4.2.0"
HADOOP_VERSION: Final = "3.5.0"
GCS_CONNECTOR_VERSION: Final = "4.0.4"
CACHE_VARIABLE: Final = "EXACTLYONCE_CACHE"
CHECKSUMS: Final = Path(__file__).with_name("checksums.txt")
#: Classes with which Spark creates files of a checkpoint exclusively; `scripts/build_jar.py` makes it of the sources.
EXCLUSIVE_FILES_JAR: Final = Path(__file__).with_name("exclusive-checkpoint-files.jar")
STAMP_NAME: Final = "verified.json"
STAGING_PREFIX: Final = "staging-"
CLASSES_PREFIX: Final = "classes-of-spark-"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class JarSet:
    """Jars that are resolved together.

    :param name: of their directory in the cache
    :param dependencies: the ``ivy.xml``
    :param checksums: SHA-256 by relative name, in the format of ``sha256sum``
    """

    name: str
    dependencies: Path
    checksums: Path

    @property
    def directory(self) -> Path:
        """Where they are published; it need not exist."""
        return cache_directory() / self.name

    @functools.cached_property
    def digests(self) -> Mapping[str, str]:
        """SHA-256 by relative name."""
        lines = self.checksums.read_text(encoding="utf-8").splitlines()
        return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}


KAFKA: Final = JarSet(f"kafka-{KAFKA_VERSION}-spark-{SPARK_VERSION}", DEPENDENCIES, CHECKSUMS)
S3A: Final = JarSet(
    f"s3a-{HADOOP_VERSION}", DEPENDENCIES.with_name("s3a.xml"), CHECKSUMS.with_name("s3a_checksums.txt")
)
GCS: Final = JarSet(
    f"gcs-{GCS_CONNECTOR_VERSION}", DEPENDENCIES.with_name("gcs.xml"), CHECKSUMS.with_name("gcs_checksums.txt")
)

AZURE: Final = JarSet(
    f"azure-{HADOOP_VERSION}", DEPENDENCIES.with_name("azure.xml"), CHECKSUMS.with_name("azure_checksums.txt")
)


def broker_jars(progress: Progress = logger.info) -> list[Path]:
    """Return the class path of the embedded broker, resolving it first if it isn't there.

    :raises MissingRequirementError: when it isn't there and can't be had
    """
    return _jars(KAFKA, progress, "broker/")


def spark_connector_jars(progress: Progress = logger.info) -> list[Path]:
    """Return the jars for ``spark.jars`` to read and write Kafka, resolving them first if they aren't there.

    :raises MissingRequirementError: when it isn't there and can't be had
    """
    return _jars(KAFKA, progress, "spark/")


def s3a_jars(progress: Progress = logger.info) -> list[Path]:
    """Return the jars for ``spark.jars`` to read and write S3, resolving them first if they aren't there.

    :raises MissingRequirementError: when it isn't there and can't be had
    """
    return _jars(S3A, progress)


def gcs_jars(progress: Progress = logger.info) -> list[Path]:
    """Return the jars for ``spark.jars`` to read and write Google Cloud Storage, resolving them first if needed.

    :raises MissingRequirementError: when it isn't there and can't be had
    """
    return _jars(GCS, progress)


def azure_jars(progress: Progress = logger.info) -> list[Path]:
    """Return the jars for ``spark.jars`` to read and write Azure's storage, resolving them first if needed.

    :raises MissingRequirementError: when it isn't there and can't be had
    """
    return _jars(AZURE, progress)


def complete_spark(progress: Progress = logger.info) -> None:
    """Put the jars that a driver may need among Spark's own; existing ones stay as they are.

    :raises MissingRequirementError: when they aren't there and can't be had, or there is no Spark
    """
    folder = spark_jars()
    buckets = (*s3a_jars(progress), *gcs_jars(progress), *azure_jars(progress))
    for jar in [*spark_connector_jars(progress), EXCLUSIVE_FILES_JAR, *buckets]:
        if not (folder / jar.name).exists():
            with replacing(folder / jar.name, mode=0o644) as copy, jar.open("rb") as file:
                shutil.copyfileobj(file, copy)


def cache_directory() -> Path:
    """Return the per-user cache; it need not exist."""
    if configured := os.environ.get(CACHE_VARIABLE):
        return Path(configured).expanduser().absolute()
    # The XDG specification says to ignore a relative path.
    shared = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(shared) if os.path.isabs(shared) else Path.home() / ".cache") / "exactlyonce"


def jar_directory() -> Path:
    """Return where the jars of these versions are published; it need not exist."""
    return KAFKA.directory


def resolve(progress: Progress, jars: JarSet = KAFKA) -> None:
    """Make sure that every jar is in the cache and has its recorded checksum.

    May be repeated, and by several processes at once: one downloads, the others wait. If it raises, or the process dies
    here, the published folder is as it was; Ivy's downloads are used by the next call.

    :param progress: called with one line per step; not at all when everything is there
    :param jars: which
    :raises MissingRequirementError: no network, no Java, a cache that can't be written, or a jar with another checksum
    """
    if _is_stamped(jars) or not _problems_of_published(jars):
        return
    try:
        with exclusive(cache_directory() / "lock", progress):
            # Checked again, because the holder of the lock before us may have published it.
            problems = _problems_of_published(jars)
            if problems:
                for problem in problems if jars.directory.exists() else ():
                    progress(f"resolving again: {problem}")
                _download(jars, progress)
    except OSError as error:
        raise MissingRequirementError(
            f"the cache {cache_directory()} can't be used ({error}); set {CACHE_VARIABLE} to a writable folder"
        ) from error


def clear_cache() -> None:
    """Remove the files of :func:`resolve`, and no others."""
    cache = cache_directory()
    globs = ("kafka-*-spark-*", "s3a-*", "gcs-*", "azure-*", f"{STAGING_PREFIX}*", f"{CLASSES_PREFIX}*", "ivy", "lock")
    for path in [path for pattern in globs for path in cache.glob(pattern)]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # absent, or not empty
        cache.rmdir()


@contextlib.contextmanager
def exclusive(lock: Path, progress: Progress) -> Iterator[None]:
    """Hold a lock of the cache; the kernel gives it back if the process dies.

    :param lock: a file in the cache, which is made if absent
    :param progress: called if another process has it
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w", encoding="utf-8") as file:
        if not try_lock(file.fileno()):
            progress(f"waiting for another process that is filling {lock.parent}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _jars(jars: JarSet, progress: Progress, folder: str = "") -> list[Path]:
    resolve(progress, jars=jars)
    return [jars.directory / name for name in jars.digests if name.startswith(folder)]


def _download(jars: JarSet, progress: Progress) -> None:
    """Fetch into a staging folder, verify, and publish by one rename. Called with the lock held."""
    cache = cache_directory()
    for abandoned in cache.glob(f"{STAGING_PREFIX}*"):  # its maker died, because the lock is ours
        shutil.rmtree(abandoned)
    ivy_cache = cache / "ivy"
    staging = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=cache))
    try:
        retrieve(staging, ivy_cache, progress, len(jars.digests), jars.dependencies)
        problems = _problems(staging, jars)
        if problems:
            # Kept, the wrong file would come from Ivy's cache again and again.
            shutil.rmtree(ivy_cache, ignore_errors=True)
            raise MissingRequirementError(
                f"refused, because the download differs from {jars.checksums.name}: {'; '.join(problems)}."
                " Try again; if it stays, a mirror or proxy delivers another file"
            )
        staging.chmod(0o755)  # mkdtemp's own mode would shut out others from a cache shared on purpose
        _write_stamp(staging, jars)
        if jars.directory.exists():
            os.rename(jars.directory, tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=cache))
        os.rename(staging, jars.directory)
    finally:
        for leftover in cache.glob(f"{STAGING_PREFIX}*"):
            shutil.rmtree(leftover, ignore_errors=True)
    shutil.rmtree(ivy_cache, ignore_errors=True)
    progress(f"{len(jars.digests)} jars verified and stored in {jars.directory}")


def _problems(directory: Path, jars: JarSet) -> list[str]:
    """Compare every jar with its checksum; an empty list means that all are there and right."""
    problems = []
    for name, digest in jars.digests.items():
        path = directory / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif (actual := _sha256(path)) != digest:
            problems.append(f"{name} has SHA-256 {actual}, expected {digest}")
    unexpected = sorted({str(path.relative_to(directory)) for path in directory.glob("*/*")} - jars.digests.keys())
    return problems + [f"{name} has no checksum" for name in unexpected]


def _problems_of_published(jars: JarSet) -> list[str]:
    """Hash the published jars, and stamp them if they are right; returns the problems."""
    problems = _problems(jars.directory, jars)
    if not problems:
        with contextlib.suppress(OSError):  # a cache baked into an image may be read-only; it is hashed each time then
            _write_stamp(jars.directory, jars)
    return problems


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _facts(directory: Path, jars: JarSet) -> dict[str, object]:
    """Collect a stamp's content: the checksums' hash, and each jar's size and times."""
    facts = {}
    for name in jars.digests:
        status = os.stat(directory / name)
        facts[name] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return {"checksums": _sha256(jars.checksums), "jars": facts}


def _write_stamp(directory: Path, jars: JarSet) -> None:
    with replacing(directory / STAMP_NAME, durable=False, mode=0o644) as file:
        file.write(json.dumps(_facts(directory, jars)).encode())


def _is_stamped(jars: JarSet) -> bool:
    try:
        stamp = json.loads((jars.directory / STAMP_NAME).read_text(encoding="utf-8"))
        return bool(stamp == _facts(jars.directory, jars))
    except (OSError, ValueError):
        return False
