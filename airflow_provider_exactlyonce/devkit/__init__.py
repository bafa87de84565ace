"""A real Kafka broker for development and tests, and what drivers start with: jars, an archive of Spark's classes."""
