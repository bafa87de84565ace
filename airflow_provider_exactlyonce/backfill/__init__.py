"""Backfills: a part of a pipeline's source is run again, beside the pipeline; what is asked for and what it covers."""
