"""The Apache Iceberg sink: tasks write Parquet files into a table's location, and one snapshot commits a batch.

Commits and their order are in ``lakehouse``; here is what catalogs, snapshots and manifests ask for. Iceberg tables as
sources are in ``tables``. ``commit`` calls it through ``sinks.spi``.
"""
