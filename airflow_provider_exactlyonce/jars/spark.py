"""Find the Spark that drivers of this environment run on, without importing pyspark."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from airflow_provider_exactlyonce.exceptions import MissingRequirementError


def spark_submit() -> str:
    """Return the program on the PATH, or that of this Python's environment."""
    return shutil.which("spark-submit") or str(Path(sys.executable).with_name("spark-submit"))


def python_environment() -> dict[str, str]:
    """Return the variables that make driver and workers use this process's interpreter.

    Spark's Python workers are otherwise the PATH's ``python3``, without the packages of this environment.
    """
    return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def spark_jars() -> Path:
    """Return the folder of Spark's jars, of SPARK_HOME or of the installed pyspark.

    :raises MissingRequirementError: when there is no Spark
    """
    if home := os.environ.get("SPARK_HOME"):
        return Path(home, "jars")
    return pyspark_jars()


def pyspark_jars() -> Path:
    """Return the folder of the jars in the installed pyspark.

    :raises MissingRequirementError: when pyspark isn't installed
    """
    specification = importlib.util.find_spec("pyspark")
    if specification is None or not specification.submodule_search_locations:
        raise MissingRequirementError("pyspark is not installed: `pip install 'airflow-provider-exactlyonce[spark]'`")
    return Path(next(iter(specification.submodule_search_locations)), "jars")
