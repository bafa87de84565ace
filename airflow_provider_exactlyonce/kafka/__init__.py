"""Kafka on the wire: partitions of keys, record batches, the transaction session and stable offsets."""
