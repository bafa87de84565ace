"""The adapters to Spark: session, steering of a query, repartition of state, errors, logs.

Private APIs of Spark are called here, those of plans in ``analysis``, and Hadoop's in ``file_systems``; each has a
contract test. It knows no protocol. All rooms of ``streaming`` that touch Spark call it.
"""
