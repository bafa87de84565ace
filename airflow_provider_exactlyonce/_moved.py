"""Names of 0.1 that users may import and that have moved: they work, and warn, until 0.3."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any


def moved(old: str, new: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose names have moved.

    :param old: the module's name
    :param new: the name, within the package, of the module that has them now
    """

    def find(name: str) -> Any:
        value = getattr(importlib.import_module(f"{__package__}.{new}"), name)
        warnings.warn(
            f"{old}.{name} is {__package__}.{new}.{name} now; the old name is deleted in 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        return value

    return find
