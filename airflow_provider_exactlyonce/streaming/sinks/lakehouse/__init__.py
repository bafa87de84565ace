"""The common part of lakehouse sinks: committers that write versions of a table, their attempts, files and audit.

It knows neither Delta nor Iceberg: ``contract`` has the interface of a table format. The rooms ``delta`` and
``iceberg`` implement it, and inherit the committers.
"""
