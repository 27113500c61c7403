"""DeepSpeed's activation checkpointing: torch's, of the kind that gives up each layer when its part is over."""

import warnings

_configured = False


def configure(
    mpu_=None,
    deepspeed_config=None,
    partition_activations=None,
    contiguous_checkpointing=None,
    num_checkpoints=None,
    checkpoint_in_cpu=None,
    synchronize=None,
    profile=None,
):
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
            f"without effect here: {', '.join(names)}; activations are torch's, and "
            "torch.autograd.graph.save_on_cpu() keeps them on the processor",
            stacklevel=2,
        )


def is_configured():
    return _configured


def reset():
    """Nothing is kept between steps."""


def checkpoint(function, *arguments, **named):
    """function(*arguments), which is computed again in the backward pass."""
    from torch.utils.checkpoint import checkpoint as of_torch

    return of_torch(function, *arguments, use_reentrant=False, **named)


non_reentrant_checkpoint = checkpoint


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"terrace.checkpointing has no {name!r}: use torch.utils.checkpoint, which also keeps the state "
        "of random numbers"
    )
