"""Tables of Delta Lake and Apache Iceberg that are read as sources: their versions, and the files that each adds.

To the ledger a table is a topic with one partition, whose offsets are positions in its versions. ``ledger`` and
``streaming.job`` call it, and the sinks of tables for the formats. It writes no table: ``streaming.sinks`` does.
"""
