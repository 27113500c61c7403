"""Whether the ranks of a process group train one model, as those of DistributedDataParallel do.

Each posts digests of its parameters and gradients in the store of torch.distributed, compares them with those of the
others, and proposes a verdict; the first proposal counts for all. No collective is used: where other ranks do something
else, this one waits for a while, and all of them know then.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .group import Group, digest

# How long a rank waits for the others' first step or load.
WAIT_SECONDS = 120.0
_SAMPLED = 16  # elements of each tensor
_AGREED = "agreed"
_numbers: dict[str, itertools.count[int]] = {}


def agreed(group: Group, names: Sequence[str], parameters: Sequence[torch.Tensor]) -> str:
    """ "" where all ranks have these parameters with equal first values, and equal gradients; else why it is not so, in
    the same words on all ranks. Their first call of it meets, and so does every later one."""
    shapes = [f"{name} {tuple(one.shape)} {one.dtype}".encode() for name, one in zip(names, parameters)]
    mine = {
        "names or shapes of parameters": digest(shapes),
        "values of parameters": digest([first_bytes(one, _SAMPLED) for one in parameters]),
        "gradients": digest(
            [b"" if one.grad is None else b"g" + first_bytes(one.grad, _SAMPLED) for one in parameters]
        ),
    }
    store = _store()
    if store is None:
        return "torch.distributed has no store in which ranks could compare their parameters"
    place = "terrace/optimizer/" + "-".join(map(str, group.ranks))
    place += f"/{next(_numbers.setdefault(place, itertools.count()))}"
    keys = [f"{place}/{rank}" for rank in range(group.count)]
    store.set(keys[group.rank], json.dumps(mine))
    verdict = _verdict(store, keys, mine)
    found = _text(store.compare_set(f"{place}/verdict", "", verdict or _AGREED))
    return "" if found == _AGREED else found


def _verdict(store: Any, keys: Sequence[str], mine: dict[str, int]) -> str:
    try:
        store.wait(list(keys), timedelta(seconds=WAIT_SECONDS))
    except RuntimeError:
        late = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        return f"after {WAIT_SECONDS:.0f} s rank {', '.join(late)} has not made a step or a load of its own"
    of_all = [json.loads(_text(store.get(key))) for key in keys]
    for what in mine:
        others = [str(rank) for rank, one in enumerate(of_all) if one[what] != of_all[0][what]]
        if others:
            return f"{what} of rank {', '.join(others)} are others than those of rank 0"
    return ""


def first_bytes(tensor: torch.Tensor, count: int) -> bytes:
    """The first elements of a dense tensor; its first one where it is not contiguous."""
    own = tensor.detach()
    if own.numel() == 0 or own.layout != torch.strided:
        return b""
    first = own.view(-1)[:count] if own.is_contiguous() else own.as_strided((1,), (1,))
    return bytes(first.cpu().view(torch.uint8).tolist())


def _store() -> Any:
    try:
        return dist.distributed_c10d._get_default_store()
    except (ValueError, RuntimeError):
        return None


def _text(given: str | bytes) -> str:
    return given.decode() if isinstance(given, bytes) else given
