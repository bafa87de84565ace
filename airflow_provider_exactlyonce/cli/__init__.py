"""The command ``exactlyonce``: a file for each subcommand, their common arguments, and how answers are printed.

Each reads its arguments and calls the same functions as the operators. Nothing is decided here, and nobody imports it.
"""
