"""Upgrades and rollbacks: a pipeline gets another version of its job, or the old one back, step by step.

``transitions`` has the steps. Plans and releases are documents of ``control``, what a savepoint allows is judged in
``checkpoint``. The operators and the command call it.
"""
