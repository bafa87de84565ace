"""The checks, by subject: each takes the facts and yields findings; nothing more is read here.

``examine`` runs them. What they judge was gathered by ``gather`` and ``probes``.
"""
