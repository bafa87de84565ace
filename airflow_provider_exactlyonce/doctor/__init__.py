"""The command ``exactlyonce doctor``: what is wrong with a pipeline, in plain words, and a repair of what is safe.

``probes`` look, ``checks`` judge what was seen, ``repairs`` change. Only the command calls it; drivers repair what
they can by themselves at their start, in ``checkpoint.recovery``.
"""
