"""DeepSpeed's comm for the processes that train together: which of them this is, a barrier, and a sum of small tensors.
Parameters and gradients are exchanged by the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from .ranks import Ranks


def init_distributed(dist_backend: object = None, *arguments: object, **named: object) -> None:
    """Joins the other processes that a launcher has started, where it has started several."""
    _ranks()


def _ranks() -> Ranks | None:
    from .torch.engine.launched import join_ranks

    return join_ranks()


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def get_rank(group: object = None) -> int:
    ranks = _ranks()
    return 0 if ranks is None else ranks.rank


def is_first() -> bool:
    """Whether this is the rank that speaks for all."""
    return get_rank() == 0


def get_local_rank() -> int:
    """Among the ranks of this host."""
    ranks = _ranks()
    return 0 if ranks is None else ranks.local_rank


def get_world_size(group: object = None) -> int:
    ranks = _ranks()
    return 1 if ranks is None else ranks.count


def barrier(*arguments: object, **named: object) -> None:
    """Waits for every rank."""
    ranks = _ranks()
    if ranks is not None:
        ranks.barrier()


def all_reduce(tensor: Any, *arguments: object, **named: object) -> None:
    """The sum over all ranks, in place and in their order; of tensors of at most 1 MiB."""
    ranks = _ranks()
    if ranks is None:
        return
    import torch

    mine = tensor.detach().cpu().contiguous()
    with ranks.within("an all-reduce"):
        parts = ranks.texts_of_all(mine.reshape(-1).view(torch.uint8).numpy().tobytes())
    sums = [torch.frombuffer(bytearray(one), dtype=mine.dtype).view(mine.shape) for one in parts]
    for one in sums[1:]:
        sums[0] += one
    tensor.data.copy_(sums[0])


def broadcast(tensor: Any, src: int = 0, *arguments: object, **named: object) -> None:
    """The values of rank `src`, in place."""
    from .torch.engine.replicas import broadcast as of_all
    from .torch.engine.replicas import require_rank

    ranks = _ranks()
    require_rank(ranks, src, "src")
    if ranks is not None:
        with ranks.within("a broadcast"):
            of_all(ranks, tensor, src)


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"terrace.comm has no {name!r}: the engine exchanges parameters and gradients by itself; for what is yours use "
        "torch.distributed"
    )
