"""Backfills: a part of a pipeline's source is run again, beside the pipeline; their requests and their ranges.

Requests, plans, progress and results are here. Batches are run by ``streaming.replay`` and ``streaming.driver``; the
operator and the command ask for them.
"""
