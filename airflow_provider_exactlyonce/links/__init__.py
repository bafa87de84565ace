"""Links of a task: the pipeline's status, Spark's pages, a savepoint, an audit's report.

They read the task's XComs, and make no request. Airflow's pages show them; the operators name them.
"""
