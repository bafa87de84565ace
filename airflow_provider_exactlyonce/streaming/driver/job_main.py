"""The program that spark-submit runs for a job: ``job_main.py JOB ARGUMENTS``. It runs JOB as ``__main__``.

Python itself would end with exit code 1 and a traceback for a job that can't even be imported, as if a restart could
repair that.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the job that the command line names."""
    folder, job = os.path.dirname(os.path.abspath(__file__)), os.path.abspath(sys.argv[1])
    if sys.path and os.path.abspath(sys.path[0]) == folder:  # imported modules are beside the job, not beside this file
        sys.path[0] = os.path.dirname(job)
    del sys.argv[0]
    try:
        from airflow_provider_exactlyonce.streaming.spark import compiled_pyspark

        compiled_pyspark.prefer()
        from airflow_provider_exactlyonce.streaming.job import process
    except ImportError as error:
        print(
            f"ERROR RefusedError: {sys.executable} can't run {job}: {error}; install "
            "airflow-provider-exactlyonce[spark] there, or let spark.pyspark.driver.python name the Python that has it",
            file=sys.stderr,
        )
        sys.exit(64)
    process.run(job)


if __name__ == "__main__":
    main()
