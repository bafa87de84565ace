"""The upsert sink: rows replace rows of the same key through SQLAlchemy, once for each commit.

For whatever database SQLAlchemy has; ``postgres`` is faster where it fits. ``commit`` calls it through ``sinks.spi``.
"""

from airflow_provider_exactlyonce._moved import moved

__getattr__ = moved(__name__, "streaming")
