"""Triggers: the same waits without a worker."""
