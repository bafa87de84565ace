"""The file sink: Parquet files of an attempt, and a log whose next record commits them.

Every file is read and written through ``storage``. ``write_ahead_log`` uses the same log.
"""
