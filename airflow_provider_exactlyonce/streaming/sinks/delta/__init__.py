"""The Delta Lake sink: tasks write Parquet files into a table's directory, and one entry of its log commits a batch."""
