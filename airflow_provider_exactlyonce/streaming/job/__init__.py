"""What a user declares and runs as a job: the pipeline, its sources, its file, and what it promises.

Nothing here runs a batch: ``driver`` does, with what is declared here. Commands and tests load jobs through ``loader``.
"""
