"""Sensors: wait for a pipeline's commits, or for its state.

Each pokes or is deferred to its trigger in ``triggers``; both ask the same function. DAGs import it.
"""
