"""The process that runs one pipeline, or one backfill of it: options, signals, status, savepoints, end.

It puts the other rooms of ``streaming`` together. Of them only ``declaration`` imports it, to run a job by itself;
``cli`` has its options. How a driver is started and watched from outside is in ``hooks`` and ``control``.
"""
