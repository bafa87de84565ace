"""Policies that users pass to operators: when a run ends, how a dead driver is restarted, when it counts as healthy.

Values that are checked and compared. They import nothing else of the package, and both halves read them.
"""
