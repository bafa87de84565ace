"""Run the Ivy that pyspark ships, so that resolving jars needs neither Maven nor a second download tool."""

from __future__ import annotations

import os
import re
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from airflow_provider_exactlyonce.exceptions import MissingRequirementError
from airflow_provider_exactlyonce.jars.java import java_executable
from airflow_provider_exactlyonce.jars.spark import pyspark_jars

Progress = Callable[[str], None]

DEPENDENCIES: Final = Path(__file__).with_name("ivy.xml")
SETTINGS_VARIABLE: Final = "EXACTLYONCE_IVY_SETTINGS"
CONNECT_TIMEOUT_MILLISECONDS: Final = 20_000
READ_TIMEOUT_MILLISECONDS: Final = 60_000
OUTPUT_TAIL_LINES: Final = 15

_FOUND = re.compile(r"^\s*found \S+?#(?P<module>[^;]+);(?P<revision>\S+) in ")
_DOWNLOADED = re.compile(r"^\s*\[SUCCESSFUL ] \S+?#(?P<module>[^;]+);(?P<revision>[^!]+)!")
_NETWORK_FAILURE = re.compile(
    r"(?:java\.net\.|javax\.net\.ssl\.|java\.io\.)(\w+Exception): ([^)\n]*)|(Host \S+ not found)"
)


def retrieve(
    destination: Path,
    ivy_cache: Path,
    progress: Progress,
    jar_count: int | None = None,
    dependencies: Path = DEPENDENCIES,
) -> None:
    """Resolve an ``ivy.xml`` and put the jars at ``destination/<conf>/<artifact>-<revision>.jar``.

    Called under the lock of the cache; may be repeated, since what Ivy has downloaded stays in its own cache.

    :param destination: an existing folder
    :param ivy_cache: Ivy's own cache; the user's ``~/.ivy2`` is neither read nor written
    :param progress: called with one line per jar
    :param jar_count: how many jars there will be, for the progress lines
    :param dependencies: the ``ivy.xml``, those of Kafka by default
    :raises MissingRequirementError: if it raises, ``destination`` may hold some of the jars
    """
    command = _command(destination, ivy_cache, dependencies)
    total = "" if jar_count is None else f" of {jar_count}"
    looked_up = downloaded = 0
    failure: str | None = None
    tail: deque[str] = deque(maxlen=OUTPUT_TAIL_LINES)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            for line in process.stdout or ():
                if match := _FOUND.match(line):
                    looked_up += 1
                    progress(f"looked up {looked_up}{total}: {match['module']} {match['revision']}")
                elif match := _DOWNLOADED.match(line):
                    downloaded += 1
                    progress(f"downloaded {downloaded}{total}: {match['module']} {match['revision']}")
                elif match := _NETWORK_FAILURE.search(line):
                    failure = failure or (match[3] or f"{match[1]}: {match[2]}")
                if line.strip(" .\t\n"):
                    tail.append(line.rstrip())
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise MissingRequirementError(_explain(failure, tail))


def ivy_jar() -> Path:
    """Find the Ivy inside the installed pyspark.

    :raises MissingRequirementError: when pyspark isn't installed
    """
    jars = pyspark_jars()
    candidates = sorted(jars.glob("ivy-*.jar"))
    if not candidates:
        raise MissingRequirementError(f"there is no ivy-*.jar in {jars}: pyspark is incomplete, install it again")
    return candidates[-1]


def _command(destination: Path, ivy_cache: Path, dependencies: Path = DEPENDENCIES) -> list[str]:
    command = [
        str(java_executable()),
        f"-Divy.default.ivy.user.dir={ivy_cache}",
        f"-Dsun.net.client.defaultConnectTimeout={CONNECT_TIMEOUT_MILLISECONDS}",
        f"-Dsun.net.client.defaultReadTimeout={READ_TIMEOUT_MILLISECONDS}",
        *proxy_options(os.environ),
        *("-jar", str(ivy_jar())),
        *("-cache", str(ivy_cache)),
        *("-ivy", str(dependencies)),
        *("-retrieve", f"{destination}/[conf]/[artifact]-[revision](-[classifier]).[ext]"),
        *("-types", "jar", "bundle", "test-jar"),
    ]
    settings = os.environ.get(SETTINGS_VARIABLE)
    return [*command, "-settings", settings] if settings else command


def proxy_options(environment: Mapping[str, str]) -> list[str]:
    """Translate the usual proxy variables, which a JVM doesn't read, into its system properties."""
    options = []
    for scheme in ("https", "http"):
        value = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY")
        if not value:
            continue
        proxy = urlsplit(value if "://" in value else f"http://{value}")
        options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    excluded = environment.get("no_proxy") or environment.get("NO_PROXY")
    if options and excluded:
        hosts = (host.strip() for host in excluded.split(","))
        patterns = (f"*{host}" if host.startswith(".") else host for host in hosts if host)
        options.append(f"-Dhttp.nonProxyHosts={'|'.join(patterns)}")
    return options


def _explain(failure: str | None, tail: deque[str]) -> str:
    if failure is not None:
        return (
            f"the jars can't be downloaded ({failure}). The network is needed once; afterwards they are in the cache."
            f" Behind a proxy set HTTPS_PROXY; for a mirror set {SETTINGS_VARIABLE} to an ivysettings.xml"
        )
    return "Ivy could not resolve the jars. The end of its output:\n" + "\n".join(tail)
