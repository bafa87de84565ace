"""The adapters to Spark: session, steering of a query, repartition of state, errors, logs.

Every private API of Spark that the package uses is called here, and has a contract test. It knows no protocol.
"""
