"""What Spark and the broker start with: Java, jars from the registries, an archive of Spark's classes.

Jars are checked and kept in a cache of the user. Nothing here knows of pipelines or starts a broker (``devkit``);
``devkit``, ``cli``, ``hooks`` and ``streaming`` take from here.
"""
