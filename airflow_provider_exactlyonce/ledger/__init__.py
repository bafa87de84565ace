"""The commit ledger: one record per committed micro-batch, in the same Kafka transaction as its data.

Records, the topic, its readers, and the gates that wait for a record. ``streaming.commit`` writes the records; all
other rooms read commits here. A sink's own ledger is in the sink's room.
"""
