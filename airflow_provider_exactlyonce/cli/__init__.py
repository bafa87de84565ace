"""The command ``exactlyonce``: a file for each subcommand, what they have in common, and how answers are printed.

Each reads its arguments and calls what the operators call. Nothing is decided here, and nobody imports it.
"""
