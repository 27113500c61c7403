"""DeepSpeed's comm for the one process that trains: its questions have answers, and its exchanges leave tensors as they
are. Several processes are refused, as terrace.initialize refuses them."""

from __future__ import annotations

from typing import NoReturn


def init_distributed(dist_backend: object = None, *arguments: object, **named: object) -> None:
    """Nothing is to be started. Raises ConfigError where a launcher has started several processes."""
    from .torch.engine.launched import require_alone

    require_alone()


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def get_rank(group: object = None) -> int:
    return 0


def get_local_rank() -> int:
    return 0


def get_world_size(group: object = None) -> int:
    return 1


def barrier(*arguments: object, **named: object) -> None:
    init_distributed()


def all_reduce(tensor: object, *arguments: object, **named: object) -> None:
    """The sum over one process."""
    init_distributed()


def broadcast(tensor: object, src: object = 0, *arguments: object, **named: object) -> None:
    """From the one process to itself."""
    init_distributed()


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"terrace.comm has no {name!r}: one process trains the whole model, so there is nothing to exchange; for "
        "processes of your own use torch.distributed"
    )
