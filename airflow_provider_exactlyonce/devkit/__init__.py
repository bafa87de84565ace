"""A real Kafka broker for development and tests, and what drivers start with: jars, an archive of Spark's classes.

Nothing here knows what a pipeline is. ``cli`` starts the broker; ``cli``, ``hooks`` and ``streaming`` take jars and
archive from here.
"""
