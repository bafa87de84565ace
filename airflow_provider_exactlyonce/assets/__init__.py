"""Assets: a pipeline's commits as events that schedule DAGs.

DAGs import the watcher; its trigger is in ``triggers``. Outlets of tasks are the business of ``operators``.
"""
