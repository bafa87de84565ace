"""The crash matrix: faults at every named step of the protocol, each judged record by record.

``python -m tests.crash_matrix --runs 1000`` runs it with real Spark and real brokers; see docs/crash-matrix.md.
"""
