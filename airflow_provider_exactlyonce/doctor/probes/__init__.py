"""What the doctor asks of the world: the driver's process, the topics, the transactions of the cluster.

Each probe looks and changes nothing. What it has found is judged in ``checks`` and repaired in ``repairs``.
"""
