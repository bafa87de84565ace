"""Assets: what a pipeline has committed, as events that schedule DAGs."""
