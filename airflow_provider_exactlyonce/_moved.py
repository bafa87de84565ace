"""Names of 0.1 that users may import and that have moved: they work, and warn, until 0.3."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

MOVED: Final = {
    "devkit.jars": "jars.cache",
    "health": "policies.health_rules",
    "restart": "policies.restart_strategy",
    "state.collected": "state",
    "state.declared": "state.base",
    "state.single": "state",
    "streaming.checkpointing": "streaming",
    "streaming.connected_stream": "streaming",
    "streaming.definition": "streaming",
    "streaming.keyed_stream": "streaming",
    "streaming.sinks.conformance": "testing.sink_conformance",
    "streaming.sinks.delivery": "streaming",
    "streaming.sinks.fault_injection": "testing.fault_injection",
    "streaming.sinks.file_table": "streaming",
    "streaming.sinks.kafka_columns": "streaming",
    "streaming.sources": "streaming",
    "streaming.sources.kafka": "streaming",
    "streaming.state_backend": "streaming",
    "triggers.chatter": "triggers.log_throttle",
    "triggers.looking": "triggers.shared_poller",
    "until": "policies.termination",
}
"""Modules that are gone, and what has their names now, both within the package."""

_RENAMED: Final = {
    "state.declared": {"Shape": "StateType"},
    "triggers.chatter": {"Chatter": "LogThrottle"},
    "triggers.looking": {"Look": "CheckResult", "Looker": "Checker", "Watch": "Subscription"},
}


def moved(old: str, new: str, renamed: Mapping[str, str] = {}) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose names have moved.

    :param old: the module's name
    :param new: the name, within the package, of the module that has them now
    :param renamed: names that are others there; the only ones if the module is the same
    """
    module_now = f"{__package__}.{new}"

    def find(name: str) -> Any:
        if name.startswith("__") or (module_now == old and name not in renamed):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        name_now = renamed.get(name, name)
        value = getattr(importlib.import_module(module_now), name_now)
        warnings.warn(
            f"{old}.{name} is {module_now}.{name_now} now; the old name is deleted in 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        return value

    return find


class MovedModules(MetaPathFinder, Loader):
    """Imports a module that has moved: its names come from their new modules. The last finder to be asked."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the module's spec, None if it is none of those that have moved."""
        if fullname.removeprefix(f"{__package__}.") not in MOVED:
            return None
        is_parent = any(f"{__package__}.{module}".startswith(f"{fullname}.") for module in MOVED)
        return importlib.util.spec_from_loader(fullname, self, is_package=is_parent)

    def exec_module(self, module: ModuleType) -> None:
        """Let the module find its names in their new modules."""
        old = module.__name__.removeprefix(f"{__package__}.")
        module.__getattr__ = moved(module.__name__, MOVED[old], _RENAMED.get(old, {}))  # type: ignore[method-assign]


def find_moved_modules() -> None:
    """Let the interpreter find them; called once, when the package is imported."""
    sys.meta_path.append(MovedModules())
