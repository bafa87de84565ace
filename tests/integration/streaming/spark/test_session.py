from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pyspark
import pytest

import airflow_provider_exactlyonce
from airflow_provider_exactlyonce.exceptions import RefusedError

PROGRAM = """
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.spark.session import check_packages
try:
    check_packages()
except RefusedError as error:
    print(error)
"""


def said_with(path: Path, package: str, version: str) -> str:
    """Return what is said where a package's installed metadata tell another version."""
    metadata = path / f"{package.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.check_output([sys.executable, "-c", PROGRAM], env=environment, text=True)


def test_one_version_of_everything_is_accepted() -> None:
    from airflow_provider_exactlyonce.streaming.spark.session import check_packages

    check_packages()


@pytest.mark.parametrize("package", ["pyspark", "pyspark-client"])
def test_a_mixture_of_versions_is_refused_with_both_and_the_remedy(tmp_path: Path, package: str) -> None:
    said = said_with(tmp_path, package, "4.3.0")
    assert f"{package} 4.3.0" in said
    assert "4.2.0" in said
    assert "pip install pyspark==" in said


@pytest.mark.parametrize(("archives", "said"), [("*.zip", ""), ("py4j*.zip", "pyspark is not installed")])
def test_sparks_own_pyspark_of_which_pip_knows_nothing_is_accepted(tmp_path: Path, archives: str, said: str) -> None:
    venv.create(tmp_path, with_pip=False)
    own = Path(pyspark.__file__).parent / "python" / "lib"
    package = Path(airflow_provider_exactlyonce.__file__).parents[1]
    path = os.pathsep.join(map(str, [*own.glob(archives), package]))
    environment = {**os.environ, "PYTHONPATH": path}
    output = subprocess.check_output([tmp_path / "bin" / "python", "-c", PROGRAM], env=environment, text=True)
    assert output.startswith(said) if said else not output


def test_a_jvm_of_another_version_is_refused() -> None:
    from airflow_provider_exactlyonce.streaming.spark.session import check_session

    class Session:
        version = "4.1.0"

    with pytest.raises(RefusedError, match=r"the JVM's Spark is 4\.1\.0"):
        check_session(Session())  # type: ignore[arg-type]
