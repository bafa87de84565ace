"""The Iceberg sink does what every sink does that writes versions of a table."""

from __future__ import annotations

from tests.integration.streaming.sinks.table_contract import TableContract


class TestIcebergTable(TableContract):
    """Its table is the fixture's."""
