"""The Kafka sink as a user declares it, and the columns of its records.

It has no committer: its rows are in the transaction of the ledger record, which the room ``streaming/commit`` writes
and ends.
"""

from airflow_provider_exactlyonce._moved import moved

__getattr__ = moved(__name__, "streaming")
