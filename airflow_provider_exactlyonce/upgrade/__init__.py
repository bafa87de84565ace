"""Upgrades and rollbacks: a pipeline gets another version of its job, or the old one back, step by step."""
