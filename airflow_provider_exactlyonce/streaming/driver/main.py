"""A job's ``main()``: runs the driver of its pipeline, or of a backfill."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.driver.backfill_driver import BackfillDriver
from airflow_provider_exactlyonce.streaming.driver.driver import Driver
from airflow_provider_exactlyonce.streaming.driver.options import parse_arguments
from airflow_provider_exactlyonce.streaming.job import driver_log, process

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition

log = logging.getLogger("exactlyonce")


def main(pipeline: PipelineDefinition, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a pipeline and exit with the outcome's code; see :mod:`airflow_provider_exactlyonce.exceptions`."""
    process.driver_begins()
    driver_log.configure()
    try:
        options = parse_arguments(pipeline.name, arguments)
    except RefusedError as error:
        log.error("RefusedError: %s", error)
        sys.exit(error.exit_code)
    sys.exit((BackfillDriver if options.backfill else Driver)(pipeline, options).run())
