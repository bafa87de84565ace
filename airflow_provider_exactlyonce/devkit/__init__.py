"""A real Kafka broker for development and tests.

Nothing here knows of pipelines; the jars that it starts with are in ``jars``. ``cli`` starts it, and tests do.
"""
