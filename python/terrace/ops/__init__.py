"""DeepSpeed's ops: its optimizers by name. They compute in the engine that terrace.initialize makes."""

from __future__ import annotations

from typing import NoReturn

from . import adam as adam


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"terrace.ops has no {name!r}: name the optimizer in the configuration (optimizer.type), or give "
        "one of torch.optim to terrace.initialize"
    )
