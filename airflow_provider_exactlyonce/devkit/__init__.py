"""A real Kafka broker and Spark's Kafka connector for the demo and the tests; needs Python and Java only."""
