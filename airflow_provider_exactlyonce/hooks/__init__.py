"""Airflow's side of a pipeline: connections, how a driver is submitted, metrics, OpenLineage, checks of arguments.

Connections are of types that other providers have, and their hooks read them, through adapters here. Operators,
sensors and triggers call this room. Whether a driver that was submitted lives is judged in ``control``.
"""
