"""The process that Spark's Python workers are forked from: ``python -m THIS pyspark.worker``, as Spark starts its own.

It has imported what each worker needs, so that none does it again, and a driver's first batch comes sooner. What starts
threads when it is imported, as NumPy and PyArrow do, is left to the workers: a fork would not have the threads.
"""

from __future__ import annotations

from airflow_provider_exactlyonce.streaming.spark import compiled_pyspark


def main() -> None:
    """Fork workers until Spark has no more use for them."""
    compiled_pyspark.prefer()
    from pyspark import daemon, worker  # noqa: F401

    from airflow_provider_exactlyonce.kafka import preflight  # noqa: F401

    daemon.manager()


if __name__ == "__main__":
    main()
