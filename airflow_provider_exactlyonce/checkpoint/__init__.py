"""Spark's checkpoint directory: what is in it, whether it is whole and fits the ledger; savepoints, ways back to them.

Only ``state_reader`` and ``state_rows`` import pyspark, for values of keyed state. Spark writes the directory while a
driver runs; operators, commands and the driver call this room for everything else.
"""
