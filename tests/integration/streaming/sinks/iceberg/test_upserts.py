"""Upserts into an Iceberg table: what every table's have in common, and what is Iceberg's own."""

from __future__ import annotations

from tests.integration.streaming.sinks.upsert_contract import UpsertContract


class TestIcebergUpserts(UpsertContract):
    """Its table is the fixture's."""
