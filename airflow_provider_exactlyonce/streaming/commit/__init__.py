"""One batch from its claim to its commit: run, checks of a start, coordinator, transaction, tasks that write.

The protocol of docs/protocol.md, with its fail points. ``driver`` and ``replay`` call it, and the doctor makes the
checks of a start. It knows nothing of how batches are planned, nor of processes.
"""
