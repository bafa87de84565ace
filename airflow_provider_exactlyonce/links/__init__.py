"""Links of a task: the pipeline's status, Spark's pages, a savepoint, an audit's report.

They read what the task has pushed, and ask nobody. Airflow's pages show them; the operators name them.
"""
