"""DeepSpeed's activation checkpointing: torch's, of the kind that gives up each layer when its part is over."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NoReturn

_configured = False


def configure(
    mpu_: object = None,
    deepspeed_config: object = None,
    partition_activations: object = None,
    contiguous_checkpointing: object = None,
    num_checkpoints: object = None,
    checkpoint_in_cpu: object = None,
    synchronize: object = None,
    profile: object = None,
) -> None:
    """Remembers that it was called. What it asks for has no effect here, and a warning says so."""
    global _configured
    _configured = True
    asked = {
        "partition_activations": partition_activations,
        "contiguous_checkpointing": contiguous_checkpointing,
        "checkpoint_in_cpu": checkpoint_in_cpu,
        "synchronize": synchronize,
        "profile": profile,
    }
    names = [name for name, value in asked.items() if value]
    if names:
        warnings.warn(
            f"without effect here: {', '.join(names)}; what a checkpoint keeps goes to host memory with "
            "activation_checkpointing.cpu_checkpointing in the configuration, or terrace.offload_activations",
            stacklevel=2,
        )


def is_configured() -> bool:
    return _configured


def reset() -> None:
    """Nothing is kept between steps."""


def checkpoint(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """function(*arguments), which is computed again in the backward pass."""
    from torch.utils.checkpoint import checkpoint as of_torch

    return of_torch(function, *arguments, use_reentrant=False, **named)


non_reentrant_checkpoint = checkpoint


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"terrace.checkpointing has no {name!r}: use torch.utils.checkpoint, which also keeps the state "
        "of random numbers"
    )
