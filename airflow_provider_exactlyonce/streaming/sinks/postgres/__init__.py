"""The PostgreSQL sink: rows are staged by tasks, and moved in one transaction with the sink's own ledger.

Upserts into other databases are in ``upsert``. ``commit`` calls it through ``sinks.spi``.
"""

from airflow_provider_exactlyonce._moved import moved

__getattr__ = moved(__name__, "streaming")
