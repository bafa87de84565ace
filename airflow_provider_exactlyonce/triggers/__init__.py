"""Triggers: wait for operators and sensors that are deferred.

They run on the event loop of Airflow's triggerer: a call that may block runs in a thread, and waits for one home or
cluster are shared. ``control``, ``ledger`` and ``transactions`` judge whether the wait is over.
"""
