"""Walks over what lives in the JVM: Scala's sequences, and trees of plans and expressions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def tree(node: Any) -> Iterator[Any]:
    """Yield a plan or an expression and all below it."""
    yield node
    for child in elements(node.children()):
        yield from tree(child)


def elements(sequence: Any) -> Iterator[Any]:
    """Yield what a Scala sequence holds."""
    for index in range(sequence.size()):
        yield sequence.apply(index)
