"""The Delta Lake sink: tasks write Parquet files into a table's directory, and one entry of its log commits a batch.

Commits and their order are in ``lakehouse``; here is what Delta's log and schema ask for. Delta tables as sources are
in ``tables``. ``commit`` calls it through ``sinks.spi``.
"""
