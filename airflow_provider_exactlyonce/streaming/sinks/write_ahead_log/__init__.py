"""The write-ahead log sink: a batch is committed as the next file of a log, then delivered to a user's target.

What the target does with a commit is the user's code. ``commit`` calls it through ``sinks.spi``.
"""

from airflow_provider_exactlyonce._moved import moved

__getattr__ = moved(__name__, "streaming")
