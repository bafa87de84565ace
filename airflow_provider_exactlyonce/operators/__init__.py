"""Operators: start and supervise a pipeline, and stop, save, upgrade, backfill and audit it.

Each reads its parameters and calls the same functions as the command of the same name. ``hooks`` submits drivers,
``triggers`` wait. DAGs import it.
"""
