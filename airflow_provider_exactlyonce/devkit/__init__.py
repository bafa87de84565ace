"""A real Kafka broker and Spark's Kafka connector for the demo and the tests, with nothing but Python and Java installed."""
