"""Keyed state as users write it: ``key_by``, ``connect``, ``spread``, and the workers' side of them.

A layer over Spark's ``transformWithState``, which calls it in the workers. Jobs use it through ``streaming``. The kinds
of state are in the package ``state``.
"""
