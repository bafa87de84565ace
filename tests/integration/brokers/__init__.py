"""Three brokers that fail: killed, frozen, cut off, restarted under a pipeline's load; see docs/crash-matrix.md."""
