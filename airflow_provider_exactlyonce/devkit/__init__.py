"""A real Kafka broker for development and tests, and drivers' jars with an archive of Spark's classes.

Nothing here knows of pipelines. ``cli`` starts the broker; ``cli``, ``hooks`` and ``streaming`` take jars and archive
from here.
"""
