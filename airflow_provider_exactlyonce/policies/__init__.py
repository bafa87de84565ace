"""What users pass to operators: when a run ends, how a driver that died is started again, when it counts as healthy.

Values that are checked and compared. They import nothing else of the package, and both halves read them.
"""
