"""The commit protocol without Spark: the real run, session, sequencer and writer, in plain processes."""
