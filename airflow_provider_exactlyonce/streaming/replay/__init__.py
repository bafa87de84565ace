"""Batches that are run again, in replays and backfills, and a rescale's batch, which gives state other partitions.

``driver`` calls it, and ``upgrade`` and the command ``rescale``. It plans batches from the ledger's records; ``commit``
writes them, ``driver`` owns the process.
"""
