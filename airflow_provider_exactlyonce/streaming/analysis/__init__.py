"""Reads Spark's plans: streams, operators, determinism, state, late rows, the records that a batch has read.

``job``, ``commit`` and ``driver`` call it. It judges nothing: ``job`` derives the guarantees, ``checkpoint`` compares
versions.
"""
