"""DeepSpeed's ops: its optimizers by name. They compute in the engine that terrace.initialize makes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = ("adagrad", "adam", "lion")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"terrace.ops has no {name!r}: name the optimizer in the configuration (optimizer.type), or give "
        "one of torch.optim to terrace.initialize"
    )
