"""What the doctor asks of the world: the driver's process, the topics, the transactions of the cluster.

``gather`` calls them. Each looks and changes nothing: what it has found is judged in ``checks`` and repaired in
``repairs``.
"""
