"""The command ``exactlyonce doctor``: names a pipeline's problems in plain words, and makes the safe repairs.

``probes`` read, ``checks`` judge the facts, ``repairs`` change. Only the command calls it; drivers make their own
repairs at their start, in ``checkpoint.recovery``.
"""
