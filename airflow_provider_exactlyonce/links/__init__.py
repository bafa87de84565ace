"""Links of a task: the pipeline's status, Spark's pages, a savepoint, an audit's report."""
