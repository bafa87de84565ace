"""The Apache Iceberg sink: tasks write Parquet files into a table's location, and one snapshot commits a batch."""
