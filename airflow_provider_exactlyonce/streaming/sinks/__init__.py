"""Sinks: the contract that the commit coordinator drives, and the systems that keep it.

``spi`` has the contract, each room below a system; their common parts are in the modules here. ``commit`` calls them
and knows none by name.
"""
