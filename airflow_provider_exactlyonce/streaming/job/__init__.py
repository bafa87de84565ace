"""The parts of a user's job: the pipeline, its sources, its file, and its guarantee.

Nothing here runs a batch: ``driver`` runs the declared pipeline. Commands and tests load jobs through ``loader``.
"""
