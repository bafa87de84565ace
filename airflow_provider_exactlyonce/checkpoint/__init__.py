"""Spark's checkpoint directory, read without pyspark."""
