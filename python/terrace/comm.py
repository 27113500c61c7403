"""DeepSpeed's comm for the processes that train together: which of them this is, a barrier, and a sum of small tensors.
Parameters and gradients are exchanged by the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from .errors import ConfigError

if TYPE_CHECKING:
    from .ranks import Ranks


def init_distributed(dist_backend: object = None, *arguments: object, **named: object) -> None:
    """Joins the other processes that a launcher has started, where it has started several. As with DeepSpeed they are
    torch's default group then, for what the program itself exchanges, where the launcher says how torch's group meets."""
    import os

    import torch.distributed as group

    if _ranks() is None or not group.is_available() or group.is_initialized():
        return
    if all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        backend = dist_backend if isinstance(dist_backend, str) else None
        group.init_process_group(backend if backend in ("gloo", "nccl", "mpi") else None)


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


class ReduceOp:
    """For `op` of all_reduce, which takes the words as well, and torch's."""

    SUM, AVG, PRODUCT, MIN, MAX = "sum", "avg", "product", "min", "max"


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
    every = torch.stack([_tensor_of(one, mine) for one in parts])
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


def reduce(tensor: Any, dst: int = 0, op: Any = "sum", group: object = None, async_op: bool = False) -> None:
    """all_reduce: every rank has the result, `dst` among them."""
    all_reduce(tensor, op, group, async_op)


def all_gather(tensor_list: list[Any], tensor: Any, group: object = None, async_op: bool = False) -> None:
    """Puts the values of every rank into its tensor of the list, in their order; at most 1 MiB of each."""
    import torch

    _require_plain(group, async_op)
    ranks = _ranks()
    mine = tensor.detach().cpu().contiguous()
    if ranks is None:
        return _into(tensor_list, [mine])
    with ranks.within(f"an all-gather of {_text_of(tensor)}"):
        parts = ranks.texts_of_all(mine.reshape(-1).view(torch.uint8).numpy().tobytes())
    return _into(tensor_list, [_tensor_of(one, mine) for one in parts])


def _into(tensors: Any, values: list[Any]) -> None:
    for into, value in zip(tensors, values):
        into.data.copy_(value)


def _tensor_of(part: bytes, like: Any) -> Any:
    import torch

    return torch.frombuffer(bytearray(part), dtype=like.dtype).view(like.shape) if part else like


def all_gather_into_tensor(output_tensor: Any, tensor: Any, group: object = None, async_op: bool = False) -> None:
    """all_gather into one tensor, which has the values of all ranks one behind the other."""
    all_gather(list(output_tensor.view(get_world_size(), *tensor.shape)), tensor, group, async_op)


allgather_fn = all_gather_into_tensor


def all_gather_object(object_list: list[Any], obj: Any, group: object = None) -> None:
    """Puts what every rank gives into the list, in their order; pickled at most 1 MiB of each."""
    import pickle

    _require_plain(group, False)
    ranks = _ranks()
    if ranks is None:
        object_list[:] = [obj]
        return
    with ranks.within("an all-gather of objects"):
        object_list[:] = [pickle.loads(one) for one in ranks.texts_of_all(pickle.dumps(obj))]


def broadcast_object_list(object_list: list[Any], src: int = 0, group: object = None, device: object = None) -> None:
    """Gives all ranks the list of rank `src`; pickled at most 1 MiB."""
    from .torch.engine.replicas import require_rank

    require_rank(_ranks(), src, "src")
    of_all: list[Any] = []
    all_gather_object(of_all, object_list if get_rank() == src else None, group)
    object_list[:] = of_all[src]


def get_global_rank(group: object = None, group_rank: int = 0) -> int:
    """Of a rank of the group of all ranks."""
    return group_rank


def get_world_group() -> None:
    """None: for these functions the group of all ranks."""


def destroy_process_group(group: object = None) -> None:
    """Does nothing: the ranks are together as long as they live."""


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"terrace.comm has no {name!r}: the engine exchanges parameters and gradients by itself; for what is yours use "
        "torch.distributed"
    )
