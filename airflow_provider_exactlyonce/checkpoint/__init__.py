"""Spark's checkpoint directory: what is in it and whether it is whole; savepoints of it, and ways back to them.

Only ``state_reader`` and ``state_rows`` import pyspark, for values of keyed state. Spark writes the directory while a
driver runs; operators, commands and the driver call this room for everything else.
"""
