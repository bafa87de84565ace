"""The soak: two chained pipelines run for hours while everything is killed, judged record by record, watched for leaks.

``python -m tests.soak --hours 8`` runs it with real brokers, Spark, Airflow, PostgreSQL and an object store; see
docs/soak.md.
"""
