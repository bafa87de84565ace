"""Exactly-once PySpark streams, run from Apache Airflow.

DAGs import ``operators``, ``sensors``, ``assets`` and ``policies``; jobs import ``streaming`` and ``state``. Rooms are
below; a module that stands here has no room, because every room may import it.
"""

from airflow_provider_exactlyonce._moved import find_moved_modules

__version__ = "0.2.0"

find_moved_modules()
