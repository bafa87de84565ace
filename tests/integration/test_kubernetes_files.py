"""The image and the objects of docs/kubernetes are what linters, the schemas of Kubernetes and this package want."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from packaging.specifiers import SpecifierSet

from airflow_provider_exactlyonce import __version__
from airflow_provider_exactlyonce.kafka import config
from airflow_provider_exactlyonce.storage.s3_environment import KEYS
from airflow_provider_exactlyonce.storage.s3_environment import VARIABLE as S3_VARIABLE
from airflow_provider_exactlyonce.streaming import settings
from tests.kubernetes_cluster import MANIFESTS, ROOT, VERSION, documented_conf, manifests

OBJECTS = [(file.name, each) for file in sorted(MANIFESTS.glob("*.yaml")) for each in manifests(file.name)]
DOCKERFILE = (MANIFESTS / "Dockerfile").read_text()
#: (instruction, its arguments)
IMAGE = [
    (word, rest)
    for line in DOCKERFILE.replace("\\\n", " ").splitlines()
    if line and not line.startswith("#")
    for word, _, rest in [line.partition(" ")]
]


def only(instruction: str) -> str:
    [rest] = [rest for word, rest in IMAGE if word == instruction]
    return rest


@pytest.mark.parametrize(("linter", "file"), [("hadolint", "Dockerfile"), ("shellcheck", "entrypoint.sh")])
def test_a_linter_finds_nothing(linter: str, file: str) -> None:
    program = Path(sys.executable).with_name(linter)
    done = subprocess.run([program, MANIFESTS / file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_image_has_the_versions_of_this_package_and_is_not_roots() -> None:
    base, version = re.fullmatch(r"(python):(\d+\.\d+\.\d+)-slim-bookworm", only("FROM")).groups()  # type: ignore[union-attr]
    project = (ROOT / "pyproject.toml").read_text()
    [supported] = re.findall(r'^requires-python = "(.+)"', project, re.MULTILINE)
    assert base == "python"
    assert version in SpecifierSet(supported)
    assert f"/python{version.rpartition('.')[0]}/" in only("ENV")
    [installed] = [shlex.split(rest)[-1] for word, rest in IMAGE if word == "RUN" and rest.startswith("pip ")]
    assert installed == f"airflow-provider-exactlyonce[spark,s3,hdfs]=={__version__}"
    assert only("USER") == "50000"
    assert all(word != "RUN" for word, _ in IMAGE[IMAGE.index(("USER", "50000")) :])


@pytest.mark.parametrize(("file", "given"), OBJECTS)
def test_an_object_fits_the_schemas_of_kubernetes(file: str, given: dict[str, Any]) -> None:
    kubernetes_validate.validate(given, VERSION.removeprefix("v").rpartition(".")[0], strict=True)


def test_the_page_has_the_rights_of_the_roles() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    rows = re.findall(r"^\| `(spark-\w+)` \| `(\S+)` \| ([\w`, ]+) \|", page, re.MULTILINE)
    written = [(role, resource, set(re.findall(r"\w+", verbs))) for role, resource, verbs in rows]
    assert written == [
        (given["metadata"]["name"], resource, set(rule["verbs"]))
        for _, given in OBJECTS
        if given["kind"] == "Role"
        for rule in given["rules"]
        for resource in rule["resources"]
    ]


def test_the_page_has_every_variable_that_a_secret_is_for() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    variables = {value for name, value in vars(settings).items() if name.endswith("_VARIABLE")}
    assert set(re.findall(r"^\| `(EXACTLYONCE_\w+)` \|", page, re.MULTILINE)) == {
        *(variables - {settings.TOKEN_VARIABLE}),
        S3_VARIABLE,
    }


def test_the_secret_is_what_a_driver_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    [(_, secret)] = [each for each in OBJECTS if each[0] == "secret.yaml"]
    values, name = secret["stringData"], secret["metadata"]["name"]
    named = {key: value for key, value in documented_conf().items() if ".secretKeyRef." in key}
    prefix = "spark.kubernetes.driver.secretKeyRef."
    assert named == {f"{prefix}{config.VARIABLE}": f"{name}:kafka", f"{prefix}{S3_VARIABLE}": f"{name}:s3"}
    monkeypatch.setenv(config.VARIABLE, values["kafka"])
    assert config.from_environment(None)["sasl.username"] == "shop"
    assert json.loads(values["s3"]).keys() > set(KEYS[:2])
