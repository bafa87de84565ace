from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.cli import pages

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = target.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"airflow_provider_exactlyonce"}
    for needed in (
        "py.typed",
        "get_provider_info.py",
        "jars/ivy.xml",
        "jars/checksums.txt",
        "jars/s3a.xml",
        "jars/azure.xml",
        "jars/azure_checksums.txt",
        "jars/gcs.xml",
        "jars/gcs_checksums.txt",
        "docs/errors.md",
    ):
        assert f"airflow_provider_exactlyonce/{needed}" in names
    assert [name for name in names if name.endswith((".pyc", ".jar"))] == [
        "airflow_provider_exactlyonce/jars/exclusive-checkpoint-files.jar"
    ]


def test_the_wheel_installs_and_its_entry_points_work(wheel: Path, tmp_path: Path) -> None:
    """Into an empty environment; the dependencies are lent by this one."""
    venv.create(tmp_path, with_pip=False)
    python = tmp_path / "bin/python"
    site = next((tmp_path / "lib").glob("python3*")) / "site-packages"
    lent = next(path for path in sys.path if path.endswith("site-packages"))
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{lent}"}
    program = (
        "import airflow_provider_exactlyonce as p, importlib.metadata as m;"
        "(e,) = [e for e in m.entry_points(group='apache_airflow_provider') if 'exactlyonce' in e.value];"
        "print(p.__file__, e.load()()['package-name'])"
    )
    said = subprocess.check_output([python, "-c", program], env=environment, text=True, cwd=tmp_path)
    assert said.split() == [str(site / "airflow_provider_exactlyonce/__init__.py"), "airflow-provider-exactlyonce"]
    installed = tmp_path / "bin/exactlyonce"
    helped = subprocess.check_output([installed, "--help"], env=environment, text=True)
    assert "broker" in helped
    for topic in ("RefusedError", "gates"):
        page = subprocess.check_output([installed, "help", topic], env=environment, text=True, cwd=tmp_path)
        assert page == f"{pages.find(topic)}\n"
