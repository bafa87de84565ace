"""What the sinks of a lakehouse share: committers that write versions of a table, their attempts, files and audit.

It knows neither Delta nor Iceberg: ``contract`` says what a table format gives. The rooms ``delta`` and
``iceberg`` give it, and inherit the committers.
"""
