"""Which elements of which parameters a rank keeps the states of, by arithmetic alone: every rank knows all shares.

Parameters of one type lie one behind another, as in a store that has them whole, and are cut into tiles; each rank has
an equal run of tiles. The blocks whose squares a store sums for its norm are those of the store that has all then, so
that the norm has the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

# Of memory/space/space_layout.h and base/record_layout.h.
_ALIGNMENT = 64
TILE = 4096


class Part(NamedTuple):
    """A run of elements of a parameter; none of them where `elements` is 0."""

    first: int
    elements: int

    @property
    def end(self) -> int:
        return self.first + self.elements


class Division(NamedTuple):
    """Of one rank it has everything."""

    rank: int = 0
    ranks: int = 1

    def parts(self, tensors: Sequence[torch.Tensor], rank: int | None = None) -> list[Part]:
        """This rank's part of each, or that of another rank. The same tensors, in the same order, on all ranks."""
        if self.ranks == 1:
            return [Part(0, tensor.numel()) for tensor in tensors]
        firsts, ends = [], dict.fromkeys((tensor.dtype for tensor in tensors), 0)
        for tensor in tensors:
            firsts.append(-(-ends[tensor.dtype] // _ALIGNMENT) * _ALIGNMENT)
            ends[tensor.dtype] = firsts[-1] + tensor.numel()
        tiles = {dtype: -(-end // TILE) for dtype, end in ends.items()}
        rank = self.rank if rank is None else rank
        parts = []
        for first, tensor in zip(firsts, tensors):
            begin, end = (tiles[tensor.dtype] * one // self.ranks * TILE for one in (rank, rank + 1))
            begin, end = max(begin, first), min(end, first + tensor.numel())
            parts.append(Part(begin - first, end - begin) if begin < end else Part(0, 0))
        return parts
