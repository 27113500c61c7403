"""DeepSpeed's comm for the processes that train together: which of them this is, a barrier, and a sum of small tensors.
Parameters and gradients are exchanged by the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from .errors import ConfigError

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


_REDUCTIONS = ("sum", "avg", "product", "min", "max")


def all_reduce(tensor: Any, op: Any = "sum", group: object = None, async_op: bool = False) -> None:
    """The sum over all ranks, in place and in their order; of tensors of at most 1 MiB. `op`: "sum", "avg", "product",
    "min" or "max", or the one of torch.distributed.ReduceOp of that name. Other groups of ranks and calls that return
    at once are refused."""
    name = str(op).rsplit(".", 1)[-1].lower()
    if name not in _REDUCTIONS:
        raise ConfigError("cannot reduce", "op", f"it is {op!r}", f"give one of {', '.join(_REDUCTIONS)}")
    _require_plain(group, async_op)
    ranks = _ranks()
    if ranks is None:
        return
    import torch

    mine = tensor.detach().cpu().contiguous()
    with ranks.within(f"an all-reduce ({name}) of {_text_of(tensor)}"):
        parts = ranks.texts_of_all(mine.reshape(-1).view(torch.uint8).numpy().tobytes())
    if not mine.numel():
        return
    every = torch.stack([torch.frombuffer(bytearray(one), dtype=mine.dtype).view(mine.shape) for one in parts])
    tensor.data.copy_(_reduced(name, every))


def _reduced(name: str, every: Any) -> Any:
    if name in ("min", "max"):
        return every.amin(0) if name == "min" else every.amax(0)
    whole = every[0].clone()
    for one in every[1:]:
        if name == "product":
            whole *= one
        else:
            whole += one
    return whole / len(every) if name == "avg" else whole


def _text_of(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _require_plain(group: object, async_op: object) -> None:
    if group is not None or async_op:
        raise ConfigError(
            "cannot exchange a tensor",
            "group" if group is not None else "async_op",
            "all ranks take part, and each waits for the others",
            "leave it out, or use torch.distributed for what is yours",
        )


def broadcast(tensor: Any, src: int = 0, group: object = None, async_op: bool = False) -> None:
    """The values of rank `src`, in place."""
    from .torch.engine.replicas import broadcast as of_all
    from .torch.engine.replicas import require_rank

    _require_plain(group, async_op)
    ranks = _ranks()
    require_rank(ranks, src, "src")
    if ranks is not None:
        with ranks.within(f"a broadcast from rank {src} of {_text_of(tensor)}"):
            of_all(ranks, tensor, src)


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"terrace.comm has no {name!r}: the engine exchanges parameters and gradients by itself; for what is yours use "
        "torch.distributed"
    )
