"""Values in the wire format of schema registries: a job's declarations, the registry, decoding and encoding.

Avro and Protobuf are here, JSON without a registry is in ``job``. The Kafka source and the Kafka sink call it, in the
driver and in the tasks.
"""
