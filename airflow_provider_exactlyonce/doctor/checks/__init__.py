"""The checks, by subject: each takes the facts and yields findings; nothing is looked at here any more.

``examine`` runs them. What they judge was gathered by ``gather`` and ``probes``.
"""
