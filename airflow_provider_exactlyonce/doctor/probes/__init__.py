"""The doctor's probes: of the driver's process, the topics, the transactions of the cluster.

``gather`` calls them. They read and change nothing: ``checks`` judge the facts, ``repairs`` repair.
"""
