"""The commit ledger: one record per committed micro-batch, in the same Kafka transaction as its data."""
