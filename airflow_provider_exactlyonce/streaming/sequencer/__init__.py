"""One producer for all tasks of a batch: the driver's server gives out sequence numbers, tasks ask for them.

``core`` decides and does no input or output. ``driver`` opens its port, ``commit`` calls it;
docs/protocol.md says why it exists.
"""
