"""Sensors: wait for what a pipeline has committed."""
