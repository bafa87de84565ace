"""Batches that are run again: replays of a lineage, backfills, a rescale's cut.

``driver`` calls it, and ``upgrade`` and the command ``rescale``. It plans batches from the ledger's records; ``commit``
writes them, ``driver`` owns the process.
"""
