"""Flink's jars, fetched once per user for this benchmark only: its libraries' wheel, its connector and its format."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.jars.cache import cache_directory
from airflow_provider_exactlyonce.jars.ivy import retrieve

FLINK_VERSION: Final = "2.2.1"
CONNECTOR_VERSION: Final = "4.0.1-2.0"
AVRO_VERSION: Final = "2.2.0"
#: By the names that they are fetched under.
CHECKSUMS: Final = {
    f"flink-sql-connector-kafka-{CONNECTOR_VERSION}.jar": (
        "c7127a6518fba5d6b75eb4692229192e7147ea378e69c7b7cf16d0494057b0c3"
    ),
    f"flink-sql-avro-confluent-registry-{AVRO_VERSION}.jar": (
        "dc331e14107ded6e07f5f77321aa06d8019aa9f33654d0658e49648409b5b80d"
    ),
}
REQUIREMENTS: Final = Path(__file__).with_name("flink_requirements.txt")
CONNECTORS: Final = Path(__file__).with_name("flink_ivy.xml")


def flink_jars() -> list[Path]:
    """Return Flink's class path, 310 MB; fetch it first if it isn't there.

    :raises RuntimeError: when the connector or the format is not the one that is meant
    """
    folder = cache_directory() / "benchmarks" / f"flink-{FLINK_VERSION}-kafka-{CONNECTOR_VERSION}-avro-{AVRO_VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as staging:
            jar_folder = Path(staging, "jars")
            jar_folder.mkdir()
            _fetch_libraries(Path(staging), jar_folder)
            _fetch_connectors(Path(staging), jar_folder)
            jar_folder.rename(folder)
    return sorted(folder.glob("*.jar"))


def _fetch_libraries(staging: Path, jar_folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    subprocess.run([*pip, "--dest", str(staging), "--requirement", str(REQUIREMENTS)], check=True)
    [wheel] = staging.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if Path(name).match("pyflink/lib/*.jar"):
                with archive.open(name) as packed, open(jar_folder / Path(name).name, "wb") as jar:
                    shutil.copyfileobj(packed, jar)


def _fetch_connectors(staging: Path, jar_folder: Path) -> None:
    retrieve(staging / "ivy-jars", staging / "ivy", print, dependencies=CONNECTORS)
    jars = {jar.name: jar for jar in (staging / "ivy-jars").glob("*/*.jar")}
    checksums = {name: hashlib.sha256(jar.read_bytes()).hexdigest() for name, jar in jars.items()}
    if checksums != CHECKSUMS:
        raise RuntimeError(f"the SHA-256 of what was fetched are {checksums}, expected {CHECKSUMS}")
    for name, jar in jars.items():
        jar.rename(jar_folder / name)
