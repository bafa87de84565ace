"""The audit: judges a pipeline's output by its ledger and its topics, with an ordinary reader's eyes."""
