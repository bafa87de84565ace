"""What can be read from Spark's plans: streams, operators, determinism, state, late rows, what a batch has read.

``job``, ``commit`` and ``driver`` call it. It reads plans and judges nothing: the guarantees are worked out in
``job``, versions are compared in ``checkpoint``.
"""
