"""What the sinks of a lakehouse share: committers that write versions of a table, their attempts, files and audit."""
