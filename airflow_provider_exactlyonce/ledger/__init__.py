"""The commit ledger: one record per committed micro-batch, in the same Kafka transaction as its data.

Records, the topic, its readers, and the gates that wait for a record. ``streaming.commit`` writes the records; every
room that asks what is committed reads them here. The ledger that another sink keeps is with that sink.
"""
