"""Airflow's side of a pipeline: connections, how a driver is submitted, metrics, OpenLineage, checks of arguments.

Users keep one connection of each kind. The hooks of the Spark and Kafka providers read them, through adapters here.
"""
