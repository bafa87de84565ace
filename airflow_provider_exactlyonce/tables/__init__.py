"""Tables of Delta Lake and Apache Iceberg that are read as sources: their versions, and the files that each adds.

To the ledger a table is a topic with one partition, whose offsets are positions in its versions.
"""
