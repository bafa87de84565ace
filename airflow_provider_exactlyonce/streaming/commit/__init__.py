"""One batch from its claim to its commit: run, coordinator, transaction, tasks that write.

The protocol of docs/protocol.md, with its fail points. ``driver`` and ``replay`` call it. It knows nothing of how
batches are planned, nor of processes.
"""
