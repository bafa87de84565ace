"""Kafka on the wire: partitions of keys, record batches, the transaction session and stable offsets.

Whatever needs a request or a byte that clients do not give is here. It knows topics and transactions, and no pipeline:
what a commit record says is in ``ledger``. Every room that talks to Kafka calls it.
"""
