"""The fresh parts of parameters that ranks have updated, gathered to all of them: long runs from where they lie to where
they belong, and short ones packed together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from .group import Group
from .slots import write_part

# Elements of packed runs that all ranks together move at a time, and that each has room for then.
_ROOM = 4 << 20
_LONG = 1 << 16  # elements of a run that is not packed
# (which tensor, its first element, how many)
Run = tuple[int, int, int]


def gather_runs(group: Group, tensors: Sequence[torch.Tensor], runs: Sequence[Sequence[Run]]) -> None:
    """`runs` are those of each rank, in its order; every rank has the newest values of its own, and all of them have
    those of all afterwards. Every rank makes this call, with tensors of the same shapes and types."""
    kinds = dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors)
    flats = [tensor.detach().reshape(-1) for tensor in tensors]  # copies where they are not contiguous
    sent = [
        group.broadcast(flats[tensor][first : first + count], rank)
        for rank, own in enumerate(runs)
        for tensor, first, count in own
        if count >= _LONG
    ]
    for kind in kinds:
        packed = [
            [run for run in own if run[2] < _LONG and (tensors[run[0]].dtype, tensors[run[0]].device) == kind]
            for own in runs
        ]
        _gather_packed(group, flats, packed, *kind)
    for work in sent:
        work.wait()
    for tensor, flat in zip(tensors, flats):
        if not tensor.is_contiguous():
            write_part(tensor, 0, flat)


def _gather_packed(
    group: Group, flats: Sequence[torch.Tensor], runs: Sequence[Sequence[Run]], dtype: torch.dtype, device: torch.device
) -> None:
    longest = max(sum(run[2] for run in own) for own in runs)
    size = min(longest, max(_ROOM // group.count, 1))
    mine = torch.zeros(size, dtype=dtype, device=device)
    of_all = torch.empty(size * group.count, dtype=dtype, device=device)
    for begin in range(0, longest, max(size, 1)):
        for place, tensor, first, count in _within(runs[group.rank], begin, size):
            mine[place : place + count] = flats[tensor][first : first + count]
        group.gather(of_all, mine)
        for rank, own in enumerate(runs):
            if rank == group.rank:
                continue
            for place, tensor, first, count in _within(own, begin, size):
                place += rank * size
                flats[tensor][first : first + count] = of_all[place : place + count]


def _within(runs: Sequence[Run], begin: int, size: int) -> Iterator[tuple[int, int, int, int]]:
    """What of runs that follow each other lies in [begin, begin + size): (its place there, tensor, first, count)."""
    at = 0
    for tensor, first, count in runs:
        start, end = max(at, begin), min(at + count, begin + size)
        if start < end:
            yield start - begin, tensor, first + start - at, end - start
        at += count
