"""Operators: start and supervise a pipeline, and stop, save, upgrade, backfill and audit it.

Each reads its parameters and calls what the command of the same name calls. How a driver is submitted is in ``hooks``,
the waiting in ``triggers``. DAGs import it.
"""
