"""Links from a task to Spark."""
