"""Sinks: the contract that the commit coordinator drives, and the systems that keep it."""
