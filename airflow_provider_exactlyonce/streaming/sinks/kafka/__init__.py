"""The Kafka sink as a user declares it, and the columns of its records. ``commit`` writes them.

It has no committer: its rows are in the transaction of the ledger record, which ``commit`` ends.
"""

from airflow_provider_exactlyonce._moved import moved

__getattr__ = moved(__name__, "streaming")
