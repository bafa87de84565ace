"""Triggers: what operators and sensors wait for while they are deferred.

They run on the event loop of Airflow's triggerer: whatever may block goes to a thread, and waits for one home or
cluster are shared. What is awaited is judged in ``control``, ``ledger`` and ``transactions``.
"""
