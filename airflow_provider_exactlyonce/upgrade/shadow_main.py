"""The program of a shadow run: ``shadow_main.py --home HOME REQUEST``. It writes a report and nothing else."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka import config as kafka_config
from airflow_provider_exactlyonce.ledger.reader import tail_of
from airflow_provider_exactlyonce.storage.opening import place_of
from airflow_provider_exactlyonce.streaming import file_systems
from airflow_provider_exactlyonce.streaming.job import loader
from airflow_provider_exactlyonce.streaming.spark import compiled_pyspark
from airflow_provider_exactlyonce.upgrade import delivered
from airflow_provider_exactlyonce.upgrade.comparison import Content, compare
from airflow_provider_exactlyonce.upgrade.shadow_replay import find_base, repeat
from airflow_provider_exactlyonce.upgrade.shadow_run import REPORT, ShadowRequest

Function = Callable[[Content], Content | None]


def main(location: str, request_file: str) -> None:
    """Make the shadow run that a file asks for.

    :param location: of the pipeline's home
    """
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    file = place_of(request_file)
    request = json_store.load(file, ShadowRequest)
    if request is None:
        raise RefusedError(f"there is no request in {request_file}")
    try:
        report = make(Home(location), request, file.parent)
    except RefusedError as error:
        report = {"refused": str(error)}
    json_store.write(file.parent / REPORT, report)


def make(home: Home, request: ShadowRequest, folder: Path) -> dict[str, Any]:
    """Repeat the commits, read the delivered rows, and compare; returns the report.

    :param home: of the pipeline
    :param folder: for the copy that is run
    :raises RefusedError: when the commits can't be repeated or compared
    """
    from airflow_provider_exactlyonce.streaming.spark.session import open_session

    options = request.options
    function = _function(options.function) if options.function else None
    config = kafka_config.from_environment(None)
    pipeline = loader.load(request.application, request.pipeline)
    tail = tail_of(config, pipeline.name)
    last = tail.place.commit if tail is not None else 0
    base = find_base(home, options.shadow_commits, last)
    with open_session(f"shadow run of {pipeline.name}") as spark:
        file_systems.prepare(spark, home.path)
        span, rows = repeat(spark, pipeline, config, base, last, folder / "lineage")
    excluded_topics = {pipeline.kafka_sink("a shadow run").bad_topic, pipeline.late_rows.topic} - {None}
    old = delivered.read(config, pipeline.name, span.first, span.last, leave_out=cast(set[str], excluded_topics))
    new = [row for row in rows if row.topic not in excluded_topics]
    differences = compare(old, new, columns=options.compare, function=function)
    unintended = differences.unintended(options.allow)
    return {
        "commits": [span.first, span.last],
        "base": f"{base.name} (commit {base.commit})",
        "version": pipeline.version,
        "source_records": span.records,
        **differences.document(),
        "allowed": options.allow,
        "unintended": unintended,
        "intended": not unintended,
    }


def _function(reference: str) -> Function:
    """Load the function that converts a row before it is compared."""
    file, _, name = reference.rpartition(":")
    spec = importlib.util.spec_from_file_location("exactlyonce_compare", file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise RefusedError(f"compare={reference!r}: there is no such Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise RefusedError(f"compare={reference!r}: {file} has no function {name}")
    return cast(Function, function)


if __name__ == "__main__":
    sys.path.pop(0)  # this file's directory: a job's modules must not be taken for ours
    compiled_pyspark.prefer()
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", required=True)
    parser.add_argument("request")
    given = parser.parse_args()
    main(given.home, given.request)
