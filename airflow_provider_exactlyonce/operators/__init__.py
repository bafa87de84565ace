"""Operators: start and supervise a pipeline."""
