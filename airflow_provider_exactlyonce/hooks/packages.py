"""How the package and its wheels reach executors that have nothing but Spark and Python.

Two archives are made of what is installed here, once each: the packages that the runtime half needs, named after
their versions, and this package, named after its content. Spark hands them to every executor and unpacks them in its
working directory; ``PYTHONPATH`` says where. So no host of the cluster needs anything installed, and all run the same
code. They hold compiled wheels: the executors' Python has to be of this one's version and platform.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.files import replacing

#: Spark setting of ours: ``ship`` (the default with a cluster) or ``installed``.
PACKAGES: Final = "spark.exactlyonce.packages"

_OWN: Final = "airflow-provider-exactlyonce"
_EXTRA: Final = "spark"
#: What is shipped where it is installed, (distribution, extra), by a module that nothing else of ours brings.
_OTHERS: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "adlfs": [(_OWN, "azure")],
    "authlib": [(_OWN, "registry")],
    "gcsfs": [(_OWN, "gcs")],
    "hdfs_native": [(_OWN, "hdfs")],
    "s3fs": [("s3fs", ""), ("universal-pathlib", "")],  # the extra is a provider of Airflow, which stays where it is
}
_PACKAGE: Final = "airflow_provider_exactlyonce"
#: Every Spark has PySpark of its own version; Airflow stays where the task runs.
_NOT_SHIPPED: Final = ("pyspark", "pyspark-client", "py4j", "apache-airflow")
#: What a distribution asks for, and does without what we use of it: of grpcio-tools that is protoc.
_UNUSED: Final[Mapping[str, frozenset[str]]] = {"grpcio-tools": frozenset({"grpcio", "setuptools"})}
_NEEDED_BY_NOBODY: Final = frozenset({"tests", "__pycache__", "include"})
_WHEELS_FOLDER: Final = "exactlyonce_wheels"
_PACKAGE_FOLDER: Final = "exactlyonce_package"


def settings_for(conf: Mapping[str, str], master: str, cache: Path) -> dict[str, str]:
    """Return the Spark settings that bring the packages to the executors, and nothing when they are there already.

    :param conf: the user's settings, in which :data:`PACKAGES` may choose
    :param master: Spark's master; with a local one the executors are this environment
    :param cache: folder for the archives; each is some 100 MB, is made once, and is read as long as a driver runs
    :raises RefusedError: when a package that is needed isn't installed here
    """
    choice = conf.get(PACKAGES, "installed" if master.startswith("local") else "ship")
    if choice not in ("ship", "installed"):
        raise SettingRefusedError(PACKAGES, choice, "ship or installed", "executors need the package and its wheels")
    if choice == "installed":
        return {}
    archives = [f"{wheels(cache)}#{_WHEELS_FOLDER}", f"{package(cache)}#{_PACKAGE_FOLDER}"]
    places = [f"./{_WHEELS_FOLDER}", f"./{_PACKAGE_FOLDER}"]
    return {
        "spark.archives": ",".join(filter(None, [conf.get("spark.archives"), *archives])),
        "spark.executorEnv.PYTHONPATH": ":".join(filter(None, [conf.get("spark.executorEnv.PYTHONPATH"), *places])),
        "spark.pyspark.python": conf.get("spark.pyspark.python", python_name()),
    }


def python_name() -> str:
    """Return the name under which a host has a Python of this one's version."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def wheels(cache: Path) -> Path:
    """Return the archive of the packages that the runtime half needs, made if it isn't there.

    :raises RefusedError: when one isn't installed here
    """
    distributions = sorted(_needed(), key=lambda distribution: distribution.name.lower())
    described = "\n".join(f"{distribution.name}=={distribution.version}" for distribution in distributions)
    files = {
        str(file): Path(str(file.locate()))
        for distribution in distributions
        for file in distribution.files or ()
        if _ships(file)
    }
    identity = f"{described}\n{sys.version_info[:2]}\n{sysconfig.get_platform()}"
    return _archive(cache, "wheels", identity, files)


def package(cache: Path) -> Path:
    """Return the archive of this package, made if it isn't there."""
    folder = Path(__file__).parents[1]
    sources = [file for file in folder.rglob("*") if file.is_file() and folder / "docs" not in file.parents]
    files = {f"{_PACKAGE}/{file.relative_to(folder)}": file for file in sources if "__pycache__" not in file.parts}
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0".encode())
        digest.update(files[name].read_bytes())
    return _archive(cache, "package", digest.hexdigest(), files)


def _ships(file: metadata.PackagePath) -> bool:
    outside = ".." in file.parts  # programs and manual pages
    return not outside and file.suffix != ".pyc" and not _NEEDED_BY_NOBODY & set(file.parts)


def _needed() -> Iterator[metadata.Distribution]:
    """Yield the distributions that the runtime half needs, with all that those need."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    waiting = [(_OWN, _EXTRA)]
    for module, distributions in _OTHERS.items():
        waiting += distributions if importlib.util.find_spec(module) is not None else ()
    seen, yielded = set(waiting), {_OWN}
    while waiting:
        name, extra = waiting.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise RefusedError(
                f"package {name} is not installed here, so it can't be shipped to the executors; install "
                f"{_OWN}[{_EXTRA}], or set {PACKAGES}=installed if every host has it"
            ) from None
        if name not in yielded:
            yielded.add(name)
            yield distribution
        for line in distribution.requires or ():
            required = Requirement(line)
            if required.marker is not None and not required.marker.evaluate({"extra": extra}):
                continue
            needed = canonicalize_name(required.name)
            if not needed.startswith(_NOT_SHIPPED) and needed not in _UNUSED.get(name, ()):
                unseen = {(needed, extra) for extra in ("", *required.extras)} - seen
                seen |= unseen
                waiting += sorted(unseen)


def _archive(cache: Path, kind: str, identity: str, files: Mapping[str, Path]) -> Path:
    """Return the archive with this identity; of two that make it at once both get a whole one."""
    path = cache / f"executors-{kind}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.zip"
    if path.is_file():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path, durable=False) as target,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        for name in sorted(files):
            archive.write(files[name], name)
    return path
