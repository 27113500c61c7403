"""Group: the ranks of a process group of torch.distributed, and what one tells the others.

Every rank makes the same calls in the same order, with tensors where its parameters are: a backend may serve no others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

# What later versions of torch call it.
_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Group:
    def __init__(self, group: Any, device: torch.device) -> None:
        self._group = group
        self._device = device
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)

    @property
    def ranks(self) -> list[int]:
        """The numbers of its ranks among all of torch.distributed."""
        return dist.get_process_group_ranks(self._group)

    def words_of_all(self, mine: Sequence[int]) -> list[list[int]]:
        """The numbers of all ranks, as many from each, from -2**63 on and below 2**63."""
        own = torch.tensor(mine, dtype=torch.int64, device=self._device)
        of_all = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(of_all, own, group=self._group)
        return [one.tolist() for one in of_all]

    def summed(self, mine: Sequence[int]) -> list[int]:
        """The sums over all ranks."""
        own = torch.tensor(mine, dtype=torch.int64, device=self._device)
        dist.all_reduce(own, group=self._group)
        return own.tolist()

    def put_together(self, values: torch.Tensor, to: int | None = None) -> None:
        """Values of fp32 in host memory, each of which one rank has and the others have as 0: bit for bit that value,
        on all ranks or on rank `to` of the group alone."""
        moved = values.view(torch.int32).to(self._device)
        if to is None:
            dist.all_reduce(moved, group=self._group)
        else:
            dist.reduce(moved, self.ranks[to], group=self._group)
        if moved.data_ptr() != values.data_ptr():
            values.view(torch.int32).copy_(moved)

    def broadcast(self, tensor: torch.Tensor, rank: int) -> Any:
        """Begins to bring a tensor of one rank to all; wait() for what it returns."""
        return dist.broadcast(tensor, self.ranks[rank], group=self._group, async_op=True)

    def gather(self, of_all: torch.Tensor, mine: torch.Tensor) -> None:
        """The tensors of all ranks, of equal size, one behind another."""
        _gather(of_all, mine, group=self._group)


def digest(parts: Iterable[bytes]) -> int:
    """A number of 62 bits that other bytes do not have."""
    hashed = hashlib.blake2b(digest_size=8)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return int.from_bytes(hashed.digest(), "little") >> 2
