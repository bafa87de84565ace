"""The audit: judges a pipeline's output by its ledger and its topics, with an ordinary reader's eyes.

It reads and changes nothing. The command and the operator call it, and the doctor uses its findings. What a sink's own
audit reads is with that sink.
"""
