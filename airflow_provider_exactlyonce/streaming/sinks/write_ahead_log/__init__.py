"""The write-ahead log sink: a batch is committed to a file log, then delivered to a user's target."""
