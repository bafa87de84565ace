"""The contract between the Airflow half and the driver: a directory of small JSON documents.

Here are the lease, requests, status and intents of a home, and the supervisor that starts drivers. How a driver runs
is in ``streaming.driver``; operators, triggers and commands call this room.
"""
