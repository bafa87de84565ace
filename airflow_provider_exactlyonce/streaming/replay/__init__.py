"""Batches that are run again: replays of a lineage, backfills, a rescale's cut.

``driver`` calls it, and ``upgrade`` and the command ``rescale``. It plans batches from what the ledger has recorded;
``commit`` writes them, ``driver`` owns the process.
"""
